#include "tutti/base/descriptor.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "tutti/base/error.h"

namespace tutti {

void Descriptor::reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

Bell::Bell() : fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!fd_) throw system_error("cannot make an eventfd", errno);
}

void Bell::ring() const {
  const uint64_t one = 1;
  // EAGAIN means that the counter is full. The eventfd is then readable already, as after a ring.
  [[maybe_unused]] const auto written = ::write(fd_.get(), &one, sizeof one);
}

void Bell::silence() const {
  uint64_t count = 0;
  [[maybe_unused]] const auto read = ::read(fd_.get(), &count, sizeof count);
}

bool Bell::wait(std::chrono::microseconds most) const {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(most);
  const timespec timeout{seconds.count(), std::chrono::nanoseconds(most - seconds).count()};
  pollfd bell{fd_.get(), POLLIN, 0};
  return ::ppoll(&bell, 1, &timeout, nullptr) > 0;
}

Poller::Poller() : fd_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!fd_) throw system_error("cannot make an epoll set", errno);
}

void Poller::watch(int fd, unsigned events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (::epoll_ctl(fd_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return;
  if (errno != EEXIST || ::epoll_ctl(fd_.get(), EPOLL_CTL_MOD, fd, &event) != 0)
    throw system_error("cannot watch a descriptor", errno);
}

void Poller::forget(int fd) { ::epoll_ctl(fd_.get(), EPOLL_CTL_DEL, fd, nullptr); }

bool Poller::wait(int milliseconds) const {
  epoll_event event{};
  return ::epoll_wait(fd_.get(), &event, 1, milliseconds) > 0;
}

}  // namespace tutti
