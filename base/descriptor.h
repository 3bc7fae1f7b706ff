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

/// An eventfd, by which one thread wakes another. ring() makes it readable, and silence() makes it
/// unreadable again; neither blocks.
class Bell {
 public:
  Bell();
  /// Takes over an eventfd that another process created and passed to this one.
  explicit Bell(Descriptor eventfd) : fd_(std::move(eventfd)) {}
  void ring() const;
  void silence() const;
  /// Blocks until the bell is rung or `most` has passed. Returns true if the eventfd is readable.
  bool wait(std::chrono::microseconds most) const;
  int descriptor() const { return fd_.get(); }

 private:
  Descriptor fd_;
};

/// An epoll set that is itself a descriptor. It is level-triggered.
class Poller {
 public:
  Poller();
  /// Watches `fd`. `events` has flags of epoll (EPOLLIN, EPOLLOUT ...). Watching an fd again
  /// replaces its events.
  void watch(int fd, unsigned events);
  void forget(int fd);
  /// Blocks until a descriptor is ready or `milliseconds` have passed (-1: no limit). Returns true
  /// if one is ready.
  bool wait(int milliseconds) const;
  int descriptor() const { return fd_.get(); }

 private:
  Descriptor fd_;
};

}  // namespace tutti
