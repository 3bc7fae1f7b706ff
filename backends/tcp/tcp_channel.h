#pragma once

#include <string>

#include "tutti/backends/channel.h"
#include "tutti/base/descriptor.h"

namespace tutti {

/// A connected, tuned TCP socket as a Channel.
class TcpChannel : public Channel {
 public:
  explicit TcpChannel(Descriptor socket) : socket_(std::move(socket)) {}
  /// Ends the stream in order: what was written still arrives.
  ~TcpChannel() override;

  /// Does not throw: bytes of the peer, such as its goodbye, may still wait to be read when writing
  /// fails, so a failure is told by the read() that finds no more of them.
  size_t write(std::span<const iovec> parts) override;
  size_t read(std::span<std::byte> bytes) override;
  size_t read_parts(std::span<const iovec> parts) override;
  bool arm(bool wants_write) override;
  void watch(Poller& poller) override;
  std::string_view route() const override { return "tcp"; }
  double quiet_seconds() override;
  bool delivered() override;

  /// What a sleeper wakes up for: EPOLLIN, EPOLLOUT, both or, with 0, not even for its end.
  void arm_for(unsigned events);
  /// Why nothing can be written any more; empty: it can.
  const std::string& failure() const { return write_failure_; }

 private:
  [[noreturn]] void lose(const std::string& seen);

  Descriptor socket_;
  Poller* poller_ = nullptr;
  unsigned watched_events_ = 0;
  std::string write_failure_;
  uint64_t written_ = 0;  // bytes
  uint64_t taken_ = 0;    // of these by the peer's host, at the last quiet_seconds()
  // The last call moved less than it could have: the next one need not ask the kernel.
  bool is_dry_ = false;
  bool is_full_ = false;
};

}  // namespace tutti
