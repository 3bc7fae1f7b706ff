#pragma once

#include <memory>
#include <vector>

#include "tutti/backends/tcp/tcp_channel.h"

namespace tutti {

/// One stream over several connected TCP sockets, for networks that limit the rate of a connection.
/// Blocks of kBlockBytes go over one socket after another in turn. So both sides know which socket
/// carries each byte, and the stream needs no headers.
class StripedChannel : public Channel {
 public:
  static constexpr size_t kBlockBytes = 128 << 10;

  /// `sockets` are connected to the peer, which has the other ends in the same order.
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
  // The position in the stream for one direction.
  struct Cursor {
    size_t lane = 0;            // index of the socket
    size_t left = kBlockBytes;  // bytes of the current block that have not moved yet
  };
  void move(Cursor& cursor, size_t bytes);
  const std::string* failure() const;  // why writing failed; null: no failure

  std::vector<std::unique_ptr<TcpChannel>> lanes_;
  Cursor writing_, reading_;
};

}  // namespace tutti
