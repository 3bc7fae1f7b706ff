#include "tutti/backends/tcp/tcp_channel.h"

#include <limits.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tutti/base/error.h"

namespace tutti {

namespace {

std::string describe(int error_number) {
  switch (error_number) {
    case EPIPE:
    case ECONNRESET:
      return "connection reset";
    case ETIMEDOUT:
      return "no answer from its host";
    default:
      return std::strerror(error_number);
  }
}

size_t total(std::span<const iovec> parts) {
  size_t bytes = 0;
  for (const auto& part : parts) bytes += part.iov_len;
  return bytes;
}

}  // namespace

TcpChannel::~TcpChannel() {
  // Closing a socket with unread bytes resets the connection, and the reset drops bytes that are
  // still on their way to the peer. So a bounded number of unread bytes is read first. (After a
  // goodbye all bytes are already delivered().)
  ::shutdown(socket_.get(), SHUT_WR);
  std::array<char, 16384> rest;
  for (int i = 0; i < 64; ++i)
    if (::recv(socket_.get(), rest.data(), rest.size(), MSG_DONTWAIT) <= 0) break;
}

size_t TcpChannel::write(std::span<const iovec> parts) {
  if (!write_failure_.empty() || std::exchange(is_full_, false)) return 0;
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = std::min<size_t>(parts.size(), IOV_MAX);
  while (true) {
    const auto count = ::sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count >= 0) {
      is_full_ = static_cast<size_t>(count) < total(parts);
      written_ += static_cast<size_t>(count);
      return static_cast<size_t>(count);
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) write_failure_ = describe(errno);
    return 0;
  }
}

size_t TcpChannel::read(std::span<std::byte> bytes) {
  const iovec part{bytes.data(), bytes.size()};
  return read_parts({&part, 1});
}

size_t TcpChannel::read_parts(std::span<const iovec> parts) {
  const size_t room = total(parts);
  if (room == 0 || std::exchange(is_dry_, false)) return 0;
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  while (true) {
    const auto count = parts.size() == 1
                           ? ::recv(socket_.get(), parts[0].iov_base, room, MSG_DONTWAIT)
                           : ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
    if (count > 0) {
      is_dry_ = static_cast<size_t>(count) < room;
      return static_cast<size_t>(count);
    }
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno != EAGAIN) lose(describe(errno));
    if (!write_failure_.empty()) lose(write_failure_);
    if (count == 0) lose("end of file");
    return 0;
  }
}

bool TcpChannel::arm(bool wants_write) {
  if (!write_failure_.empty()) return false;  // read() reports the failure
  arm_for(wants_write ? EPOLLIN | EPOLLOUT : EPOLLIN);
  return true;  // bytes that arrive from now on make the poller ready
}

void TcpChannel::arm_for(unsigned events) {
  if (!poller_ || events == watched_events_) return;
  if (events == 0)
    poller_->forget(socket_.get());
  else
    poller_->watch(socket_.get(), events);
  watched_events_ = events;
}

void TcpChannel::watch(Poller& poller) {
  poller_ = &poller;
  watched_events_ = EPOLLIN;
  poller.watch(socket_.get(), watched_events_);
}

double TcpChannel::quiet_seconds() {
  tcp_info info{};
  socklen_t length = sizeof info;
  int waiting = 0;
  if (::getsockopt(socket_.get(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0 ||
      ::ioctl(socket_.get(), SIOCOUTQ, &waiting) != 0)
    return std::numeric_limits<double>::infinity();
  const uint64_t taken = written_ - static_cast<uint64_t>(waiting);
  // The peer's kernel acknowledges small messages immediately, even if the peer's process is
  // stopped. So an acknowledgement counts as a sign of life only under two conditions: the peer's
  // host has taken bytes since the last call, and this rank still has bytes to send. The buffers of
  // a stopped peer fill up, and then its host takes no more bytes.
  const bool takes = std::exchange(taken_, taken) != taken && waiting > 0;
  const auto milliseconds = takes ? std::min(info.tcpi_last_data_recv, info.tcpi_last_ack_recv)
                                  : info.tcpi_last_data_recv;
  return milliseconds / 1000.0;
}

bool TcpChannel::delivered() {
  int waiting = 0;
  if (!write_failure_.empty() || ::ioctl(socket_.get(), SIOCOUTQ, &waiting) != 0) return true;
  return waiting == 0;
}

void TcpChannel::lose(const std::string& seen) {
  // A socket at its end stays readable, and would wake the sleeping thread again and again.
  if (poller_) poller_->forget(socket_.get());
  poller_ = nullptr;
  throw Error(ErrorCode::peer_lost, seen);
}

}  // namespace tutti
