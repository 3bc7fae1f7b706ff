#pragma once

#include <string>

#include "tutti/backends/channel.h"
#include "tutti/base/descriptor.h"

namespace tutti {

/// A Channel over a connected TCP socket.
class TcpChannel : public Channel {
 public:
  explicit TcpChannel(Descriptor socket) : socket_(std::move(socket)) {}
  /// Closes the connection in order, so that bytes already written still arrive.
  ~TcpChannel() override;

  /// Never throws. When a write fails, bytes of the peer, such as its goodbye, may still wait to be
  /// read. So the read() that finds no more bytes throws the error.
  size_t write(std::span<const iovec> parts) override;
  size_t read(std::span<std::byte> bytes) override;
  size_t read_parts(std::span<const iovec> parts) override;
  bool arm(bool wants_write) override;
  void watch(Poller& poller) override;
  std::string_view route() const override { return "tcp"; }
  double quiet_seconds() override;
  bool delivered() override;

  /// Sets the events that wake a sleeping thread: EPOLLIN, EPOLLOUT or both. With 0 nothing wakes
  /// it, not even the end of the connection.
  void arm_for(unsigned events);
  /// Returns why writing failed, or an empty text if it did not.
  const std::string& failure() const { return write_failure_; }

 private:
  [[noreturn]] void lose(const std::string& seen);

  Descriptor socket_;
  Poller* poller_ = nullptr;
  unsigned watched_events_ = 0;
  std::string write_failure_;
  uint64_t written_ = 0;  // bytes written so far
  // bytes of written_ that the peer's host had taken at the last quiet_seconds()
  uint64_t taken_ = 0;
  // True if the last read (is_dry_) or write (is_full_) moved less than it could have. Then the
  // next one returns without asking the kernel.
  bool is_dry_ = false;
  bool is_full_ = false;
};

}  // namespace tutti
