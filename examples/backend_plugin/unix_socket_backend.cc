// A backend in one file: it connects the ranks of one host by Unix sockets. It provides a byte
// stream to each peer, and the library makes a whole backend of these streams
// (make_stream_backend). A plugin that runs collectives itself would implement tutti::Backend
// instead.

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tutti/backends/backend.h"
#include "tutti/base/error.h"

namespace {

using tutti::Context;
using tutti::Descriptor;
using tutti::Error;
using tutti::ErrorCode;

[[noreturn]] void lose_peer(const std::string& seen) { throw Error(ErrorCode::peer_lost, seen); }

class UnixChannel final : public tutti::Channel {
 public:
  explicit UnixChannel(Descriptor socket) : socket_(std::move(socket)) {}
  // The poller must forget the socket. Otherwise it would keep watching a socket that other
  // processes hold open too.
  ~UnixChannel() override {
    if (poller_ != nullptr) poller_->forget(socket_.get());
  }

  // Errors are ignored here, because read() reports the end of a peer after the last byte that it
  // sent.
  size_t write(std::span<const iovec> parts) override {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts.data());
    message.msg_iovlen = std::min<size_t>(parts.size(), 64);
    const auto count = ::sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    return count < 0 ? 0 : static_cast<size_t>(count);
  }
  size_t read(std::span<std::byte> bytes) override {
    if (bytes.empty()) return 0;
    const auto count = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count > 0) return static_cast<size_t>(count);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    const std::string seen = count == 0 ? "end of file" : std::strerror(errno);
    // After the peer's end the socket would stay readable forever, so the poller forgets it.
    if (poller_ != nullptr) poller_->forget(socket_.get());
    poller_ = nullptr;
    lose_peer(seen);
  }
  bool arm(bool wants_write) override {
    if (poller_ != nullptr && wants_write != wants_write_)
      poller_->watch(socket_.get(), wants_write ? EPOLLIN | EPOLLOUT : EPOLLIN);
    wants_write_ = wants_write;
    return true;  // the poller reports all events
  }
  void watch(tutti::Poller& poller) override {
    poller_ = &poller;
    poller.watch(socket_.get(), EPOLLIN);
  }
  std::string_view route() const override { return "unix_socket"; }

 private:
  const Descriptor socket_;
  tutti::Poller* poller_ = nullptr;
  bool wants_write_ = false;
};

// Waits until the socket can be read.
void await(const Context& context, const Descriptor& socket, const std::string& what) {
  pollfd entry{socket.get(), POLLIN, 0};
  while (::poll(&entry, 1, context.deadline.poll_milliseconds()) <= 0)
    if (context.deadline.passed())
      throw Error(ErrorCode::timeout, "backend unix_socket: rank " + std::to_string(context.rank) +
                                          " waited without success for " + what);
}

std::string key(int rank) { return "unix_socket/" + std::to_string(rank); }

// Listens in the kernel's abstract namespace, so no file is left behind.
Descriptor listen_anywhere(const Context& context) {
  Descriptor listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  socklen_t length = sizeof address.sun_family;
  auto* plain = reinterpret_cast<sockaddr*>(&address);
  if (!listener || ::bind(listener.get(), plain, length) != 0 ||
      ::listen(listener.get(), context.size) != 0)
    throw tutti::system_error("backend unix_socket cannot listen", errno);
  length = sizeof address;
  ::getsockname(listener.get(), plain, &length);
  context.store->set(key(context.rank), {reinterpret_cast<const char*>(&address), length});
  return listener;
}

Descriptor connect_to(const Context& context, int peer) {
  const auto address = context.store->get(key(peer), context.deadline);
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket || address.size() > sizeof(sockaddr_un) ||
      ::connect(socket.get(), reinterpret_cast<const sockaddr*>(address.data()),
                static_cast<socklen_t>(address.size())) != 0)
    throw Error(ErrorCode::unavailable, "backend unix_socket cannot reach rank " +
                                            std::to_string(peer) + " (" + std::strerror(errno) +
                                            "); it serves ranks of one host only, use tcp");
  const int32_t rank = context.rank;
  if (::send(socket.get(), &rank, sizeof rank, MSG_NOSIGNAL) != sizeof rank)
    lose_peer("rank " + std::to_string(peer) + " hung up");
  return socket;
}

// Accepts a connection from a process of the same user that sends its rank, and returns the rank.
// Returns -1 for any other connection, which is then closed.
int accept_one(const Context& context, const Descriptor& listener, Descriptor& socket) {
  await(context, listener, "the ranks above it");
  socket.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ucred peer{};
  socklen_t length = sizeof peer;
  if (!socket || ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 ||
      peer.uid != ::getuid())
    return -1;
  await(context, socket, "a greeting");
  int32_t rank = -1;
  return ::recv(socket.get(), &rank, sizeof rank, 0) == sizeof rank ? rank : -1;
}

std::vector<std::unique_ptr<tutti::Channel>> open_channels(const Context& context,
                                                           std::span<const int> peers) {
  std::vector<std::unique_ptr<tutti::Channel>> channels(static_cast<size_t>(context.size));
  const auto listener = listen_anywhere(context);
  size_t missing = 0;
  for (const int peer : peers)
    if (peer < context.rank)
      channels[static_cast<size_t>(peer)] =
          std::make_unique<UnixChannel>(connect_to(context, peer));
    else
      ++missing;
  while (missing > 0) {
    Descriptor socket;
    const int peer = accept_one(context, listener, socket);
    if (peer <= context.rank || peer >= context.size || channels[static_cast<size_t>(peer)])
      continue;
    channels[static_cast<size_t>(peer)] = std::make_unique<UnixChannel>(std::move(socket));
    --missing;
  }
  return channels;
}

std::unique_ptr<tutti::Backend> connect(const Context& context) {
  std::vector<int> peers;
  for (int peer = 0; peer < context.size; ++peer)
    if (peer != context.rank) peers.push_back(peer);
  return make_stream_backend(context, "unix_socket", open_channels(context, peers));
}

}  // namespace

const tutti::BackendPlugin tutti::tutti_backend_plugin = {
    .name = "unix_socket",
    .summary = "Unix sockets between the ranks of one host",
    .connect = connect,
    .open = open_channels,
};
