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

  /// Never throws. When writing fails, bytes of the peer, such as its goodbye, may still wait to be
  /// read. The read() that finds no more bytes reports the failure.
  size_t write(std::span<const iovec> parts) override;
  size_t read(std::span<std::byte> bytes) override;
  size_t read_parts(std::span<const iovec> parts) override;
  bool arm(bool wants_write) override;
  void watch(Poller& poller) override;
  std::string_view route() const override { return "tcp"; }
  double quiet_seconds() override;
  bool delivered() override;

  /// Sets the events that wake a sleeper: EPOLLIN, EPOLLOUT or both. With 0 not even the end of the
  /// connection does.
  void arm_for(unsigned events);
  /// Returns why writing failed, or an empty text if it did not.
  const std::string& failure() const { return write_failure_; }

 private:
  [[noreturn]] void lose(const std::string& seen);

  Descriptor socket_;
  Poller* poller_ = nullptr;
  unsigned watched_events_ = 0;
  std::string write_failure_;
  uint64_t written_ = 0;  // bytes
  // of these, bytes that the peer's host had taken at the last quiet_seconds()
  uint64_t taken_ = 0;
  // The last call moved less than it could have, so the next one need not ask the kernel.
  bool is_dry_ = false;
  bool is_full_ = false;
};

}  // namespace tutti
