#pragma once

#include <chrono>
#include <utility>

namespace tutti {

/// Owns one file descriptor and closes it.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~Descriptor() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

/// An eventfd: ring() makes it readable, silence() makes it unreadable again. Never blocks.
class Bell {
 public:
  Bell();
  /// One that another process made and passed here.
  explicit Bell(Descriptor eventfd) : fd_(std::move(eventfd)) {}
  void ring() const;
  void silence() const;
  /// Until it is rung, or `most` passed. True: it is readable.
  bool wait(std::chrono::microseconds most) const;
  int descriptor() const { return fd_.get(); }

 private:
  Descriptor fd_;
};

/// An epoll set that is itself a descriptor. Level-triggered.
class Poller {
 public:
  Poller();
  /// events as in epoll (EPOLLIN, EPOLLOUT ...); adding an fd twice changes its events.
  void watch(int fd, unsigned events);
  void forget(int fd);
  /// Waits until something is ready, or `milliseconds` passed (-1: for ever). True if ready.
  bool wait(int milliseconds) const;
  int descriptor() const { return fd_.get(); }

 private:
  Descriptor fd_;
};

}  // namespace tutti
