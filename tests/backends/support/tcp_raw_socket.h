#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "tutti/base/deadline.h"
#include "tutti/base/descriptor.h"
#include "tutti/base/error.h"

namespace tutti {

/// A connection over IPv4 loopback that sends any bytes, to play a stranger.
class RawConnection {
 public:
  explicit RawConnection(int port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
      throw system_error("cannot connect a raw socket", errno);
  }
  explicit RawConnection(Descriptor socket) : socket_(std::move(socket)) {}

  /// Ignores whether the other side takes the bytes, as a stranger would.
  void send(const std::string& bytes) {
    (void)!::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  std::string read_to_end() { return read_to_end_for(30); }
  std::string read_to_end_for(double seconds) {
    std::string bytes;
    while (wait(seconds) && receive(bytes)) {
    }
    return bytes;
  }
  /// Reads until the other side closes; returns false if that does not happen in time.
  bool ends_within(double seconds) {
    const auto deadline = Deadline::after(seconds);
    std::string bytes;
    while (!deadline.passed()) {
      if (wait(0.05) && !receive(bytes)) return true;
    }
    return false;
  }

 private:
  bool wait(double seconds) {
    pollfd entry{socket_.get(), POLLIN, 0};
    return ::poll(&entry, 1, static_cast<int>(seconds * 1000)) > 0;
  }
  bool receive(std::string& bytes) {
    char buffer[4096];
    const auto count = ::recv(socket_.get(), buffer, sizeof buffer, 0);
    if (count <= 0) return false;
    bytes.append(buffer, static_cast<size_t>(count));
    return true;
  }

  Descriptor socket_;
};

/// Listens on a free port of IPv4 loopback.
class RawListener {
 public:
  RawListener() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    if (::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
        ::listen(socket_.get(), 16) != 0 ||
        ::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0)
      throw system_error("cannot listen with a raw socket", errno);
    port_ = ntohs(address.sin_port);
  }
  int port() const { return port_; }
  RawConnection accept() {
    return RawConnection(Descriptor(::accept(socket_.get(), nullptr, nullptr)));
  }

 private:
  Descriptor socket_;
  int port_ = 0;
};

}  // namespace tutti
