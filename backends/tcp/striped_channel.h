#pragma once

#include <memory>
#include <vector>

#include "tutti/backends/tcp/tcp_channel.h"

namespace tutti {

/// One stream over several connected TCP sockets, for networks that bound what one connection gets:
/// its blocks of kBlockBytes travel over one socket after another, so nothing is added to it and
/// both sides know where each byte comes.
class StripedChannel : public Channel {
 public:
  static constexpr size_t kBlockBytes = 128 << 10;

  /// The peer has the other ends in the same order.
  explicit StripedChannel(std::vector<Descriptor> sockets);

  size_t write(std::span<const iovec> parts) override;
  size_t read(std::span<std::byte> bytes) override;
  size_t read_parts(std::span<const iovec> parts) override;
  bool arm(bool wants_write) override;
  void watch(Poller& poller) override;
  std::string_view route() const override { return "tcp"; }
  double quiet_seconds() override;
  bool delivered() override;

 private:
  // Where one direction is.
  struct Cursor {
    size_t lane = 0;
    size_t left = kBlockBytes;  // of the block
  };
  void move(Cursor& cursor, size_t bytes);
  const std::string* failure() const;  // of writing; null: none

  std::vector<std::unique_ptr<TcpChannel>> lanes_;
  Cursor writing_, reading_;
};

}  // namespace tutti
