#include "benchmarks/limits/ring.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <vector>

namespace tutti::benchmarks {

namespace {

constexpr int kConnect_ms = 10'000;
constexpr int kStall_ms = 20'000;

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

void set_congestion(int socket, const std::string& name) {
  if (!name.empty() && ::setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name.data(),
                                    static_cast<socklen_t>(name.size())) != 0)
    fail("congestion control " + name);
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

sockaddr_in address_of(const std::string& host, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (::inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1)
    throw std::invalid_argument("not an IPv4 address: " + host);
  return address;
}

}  // namespace

Ring::Socket::Socket(int descriptor) : descriptor_(descriptor) {
  if (descriptor < 0) fail("socket");
}
Ring::Socket::~Socket() {
  if (descriptor_ >= 0) ::close(descriptor_);
}
Ring::Socket::Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

Ring::Ring(ForkTeam& team, const std::vector<std::string>& hosts, int sockets,
           const std::string& congestion) {
  const int me = team.rank(), size = team.size(), right = (me + 1) % size;
  Socket listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  set_congestion(listener.get(), congestion);  // accepted sockets inherit it
  auto address = address_of(hosts[static_cast<size_t>(me)], 0);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener.get(), generic, length) != 0 || ::listen(listener.get(), sockets) != 0 ||
      ::getsockname(listener.get(), generic, &length) != 0)
    fail("listening on " + hosts[static_cast<size_t>(me)]);
  const auto ports = team.exchange(std::to_string(ntohs(address.sin_port)));

  const bool connects = size > 2 || me == 0, accepts = size > 2 || me == 1;
  for (int i = 0; connects && i < sockets; ++i) {
    Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    set_congestion(socket.get(), congestion);
    const auto& host = hosts[static_cast<size_t>(right)];
    const auto port = std::stoi(ports[static_cast<size_t>(right)]);
    auto to = address_of(host, static_cast<uint16_t>(port));
    if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0)
      fail("connecting to " + host);
    to_right_.push_back(std::move(socket));
  }
  for (int i = 0; accepts && i < sockets; ++i) {
    pollfd waiting{listener.get(), POLLIN, 0};
    if (::poll(&waiting, 1, kConnect_ms) != 1) fail("no connection from the left within 10 s");
    from_left_.emplace_back(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }
  for (const auto& socket : connects ? to_right_ : from_left_) send_on_.push_back(socket.get());
  for (const auto& socket : accepts ? from_left_ : to_right_) recv_on_.push_back(socket.get());
}

namespace {

int64_t share(int64_t bytes, size_t i, size_t sockets) {
  const auto each = bytes / static_cast<int64_t>(sockets);
  return i + 1 < sockets ? each : bytes - each * static_cast<int64_t>(sockets - 1);
}

}  // namespace

void Ring::exchange(int64_t bytes) {
  const size_t sockets = send_on_.size();
  std::vector<int64_t> to_send(sockets), to_recv(sockets);
  for (size_t i = 0; i < sockets; ++i) to_send[i] = to_recv[i] = share(bytes, i, sockets);
  std::vector<pollfd> waiting(2 * sockets);
  for (;;) {
    bool moved = false, pending = false;
    for (size_t i = 0; i < sockets; ++i) {
      moved |= advance(send_on_[i], to_send[i], true) | advance(recv_on_[i], to_recv[i], false);
      pending |= to_send[i] > 0 || to_recv[i] > 0;
      waiting[2 * i] = {to_send[i] > 0 ? send_on_[i] : -1, POLLOUT, 0};
      waiting[2 * i + 1] = {to_recv[i] > 0 ? recv_on_[i] : -1, POLLIN, 0};
    }
    if (!pending) return;
    if (!moved && ::poll(waiting.data(), waiting.size(), kStall_ms) == 0)
      throw std::runtime_error("no byte moved for 20 s");
  }
}

std::string Ring::congestion() const {
  char name[32] = {};
  socklen_t length = sizeof name - 1;
  if (::getsockopt(send_on_.front(), IPPROTO_TCP, TCP_CONGESTION, name, &length) != 0)
    fail("asking for the congestion control");
  return name;
}

// Makes one system call if bytes are left. Returns whether any bytes were moved.
bool Ring::advance(int descriptor, int64_t& left, bool sends) {
  if (left == 0) return false;
  const auto length = static_cast<size_t>(std::min<int64_t>(left, kPiece));
  const auto moved = sends ? ::send(descriptor, out_.data(), length, MSG_DONTWAIT | MSG_NOSIGNAL)
                           : ::recv(descriptor, in_.data(), length, MSG_DONTWAIT);
  if (moved > 0) {
    left -= moved;
    return true;
  }
  if (moved == 0) throw std::runtime_error("the neighbour closed its connection");
  if (errno != EAGAIN && errno != EINTR) fail(sends ? "send" : "recv");
  return false;
}

}  // namespace tutti::benchmarks
