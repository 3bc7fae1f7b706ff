#pragma once

#include <memory>
#include <vector>

#include "tutti/backends/tcp/tcp_channel.h"

namespace tutti {

/// One stream over several connected TCP sockets, for networks that limit the rate of one
/// connection. Blocks of kBlockBytes travel over one socket after another. So the stream needs no
/// headers, and both sides know which socket carries each byte.
class StripedChannel : public Channel {
 public:
  static constexpr size_t kBlockBytes = 128 << 10;

  /// The peer has the other ends of the sockets in the same order.
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
  // The position of one direction.
  struct Cursor {
    size_t lane = 0;
    size_t left = kBlockBytes;  // bytes left of the block
  };
  void move(Cursor& cursor, size_t bytes);
  const std::string* failure() const;  // why writing failed; null: it has not

  std::vector<std::unique_ptr<TcpChannel>> lanes_;
  Cursor writing_, reading_;
};

}  // namespace tutti
