#include "tutti/backends/network/sockets.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "tutti/base/descriptor.h"
#include "tutti/base/error.h"

namespace tutti {

namespace {

void set_option(int descriptor, int level, int option, int value) {
  ::setsockopt(descriptor, level, option, &value, sizeof value);
}

bool set_congestion(int descriptor, const std::string& name) {
  return ::setsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, name.data(),
                      static_cast<socklen_t>(name.size())) == 0;
}

// Returns whether both ends of a connection are addresses of this host. The packets of such a
// connection go over loopback, whichever addresses these are.
bool goes_over_loopback(int descriptor) {
  tcp::endpoint own, peer;
  auto own_length = static_cast<socklen_t>(own.capacity()), peer_length = own_length;
  if (::getsockname(descriptor, own.data(), &own_length) != 0 ||
      ::getpeername(descriptor, peer.data(), &peer_length) != 0)
    return false;
  own.resize(own_length);
  peer.resize(peer_length);
  return own.address() == peer.address() || peer.address().is_loopback();
}

// Returns a list such as "reno bbr cubic".
std::string congestion_list(const char* which) {
  std::ifstream file(std::string("/proc/sys/net/ipv4/tcp_") + which + "_congestion_control");
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

tcp::socket accept_waiting(tcp::acceptor& acceptor, ErrorStatus& status) {
  tcp::socket socket(acceptor.get_executor());
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  // Asio's own accept would leave the descriptor open across exec. A program started at that moment
  // would keep the connection alive.
  const int fd = ::accept4(acceptor.native_handle(), reinterpret_cast<sockaddr*>(&address), &length,
                           SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) {
    status.assign(errno, boost::system::system_category());
    return socket;
  }
  tune_connection(fd);
  socket.assign(address.ss_family == AF_INET6 ? tcp::v6() : tcp::v4(), fd, status);
  if (status) ::close(fd);
  return socket;
}

bool is_harmless_accept_error(const ErrorStatus& status) {
  switch (status.value()) {
    case EAGAIN:
    case EINTR:
    case ECONNABORTED:
    case EPROTO:
    case EPERM:
    case ENETDOWN:
    case ENETUNREACH:
    case EHOSTDOWN:
    case EHOSTUNREACH:
      return true;
    default:
      return false;
  }
}

tcp::acceptor listen_on(asio::io_context& io, const tcp::endpoint& endpoint) {
  const auto fail = [&](int number) -> Error {
    if (number == EADDRINUSE)
      return {ErrorCode::io,
              fmt::format("cannot listen on {}: the port is in use by another process; choose "
                          "another port, or 0 for any free one",
                          to_text(endpoint))};
    return system_error(fmt::format("cannot listen on {}", to_text(endpoint)), number);
  };
  const int fd =
      ::socket(endpoint.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) throw fail(errno);
  tcp::acceptor acceptor(io, endpoint.protocol(), fd);
  set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  if (endpoint.protocol() == tcp::v6()) set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
  if (::bind(fd, endpoint.data(), static_cast<socklen_t>(endpoint.size())) != 0) throw fail(errno);
  if (::listen(fd, SOMAXCONN) != 0) throw fail(errno);
  acceptor.non_blocking(true);
  return acceptor;
}

std::vector<tcp::endpoint> resolve(asio::io_context& io, const std::string& host, int port) {
  if (port < 0 || port > 65535)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("port {} of host {} is out of range, expected 0 to 65535", port, host));
  ErrorStatus status;
  const auto numeric = asio::ip::make_address(host, status);
  if (!status) return {{numeric, static_cast<uint16_t>(port)}};
  const auto found = tcp::resolver(io).resolve(host, std::to_string(port), status);
  if (status)
    throw Error(ErrorCode::io,
                fmt::format("no address is known for host {}: {}", host, status.message()));
  return {found.begin(), found.end()};
}

std::string to_text(const tcp::endpoint& endpoint) {
  const auto address = endpoint.address();
  return address.is_v6() ? fmt::format("[{}]:{}", address.to_string(), endpoint.port())
                         : fmt::format("{}:{}", address.to_string(), endpoint.port());
}

void tune_connection(int descriptor) {
  ::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  set_option(descriptor, IPPROTO_TCP, TCP_NODELAY, 1);
  // If the peer's host vanishes, the kernel ends the connection after a minute, even if no rank
  // waits for data. If a rank waits, the layers above notice the loss much sooner.
  set_option(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, 60'000);
  set_option(descriptor, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, 20);
  set_option(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, 10);
}

void choose_congestion(int descriptor, const std::string& name) {
  // Over loopback BBR's pacing would cost a third to a half of the rate. Elsewhere the host's
  // default stays, because its owner knows the network better. A kernel without cubic keeps its
  // default.
  if (!name.empty() || goes_over_loopback(descriptor))
    set_congestion(descriptor, name.empty() ? "cubic" : name);
}

void check_congestion(const std::string& name) {
  if (name.empty()) return;
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) throw system_error("cannot make a socket", errno);
  if (set_congestion(socket.get(), name)) return;
  const bool forbidden = errno == EPERM;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("TUTTI_TCP_CONGESTION={} {}; expected one of {}, or nothing for the host's own",
                  name,
                  forbidden ? "needs a privilege (CAP_NET_ADMIN) on this host"
                            : "is not a congestion control of this host's kernel",
                  congestion_list(forbidden ? "allowed" : "available")));
}

}  // namespace tutti
