#include "tutti/backends/shm/unix_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "tutti/base/check.h"
#include "tutti/base/error.h"
#include "tutti/base/process/limits.h"

namespace tutti {

namespace {

constexpr size_t kMostDescriptors = 4;

// SOCK_SEQPACKET keeps messages whole, so neither side has to join fragments.
Descriptor make_socket() {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) throw system_error("cannot make a Unix socket", errno);
  return socket;
}

socklen_t make_address(const std::string& name, sockaddr_un& address) {
  TUTTI_CHECK(name.size() + 1 <= sizeof address.sun_path);
  address = {};
  address.sun_family = AF_UNIX;
  // a first byte of 0 makes the name abstract
  std::copy(name.begin(), name.end(), address.sun_path + 1);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

}  // namespace

Descriptor listen_unix(const std::string& name) {
  auto socket = make_socket();
  sockaddr_un address;
  const auto length = make_address(name, address);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0)
    throw system_error("cannot listen on a Unix socket", errno);
  return socket;
}

Descriptor connect_unix(const std::string& name, bool& busy) {
  auto socket = make_socket();
  sockaddr_un address;
  const auto length = make_address(name, address);
  busy = false;
  while (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    if (errno == EINTR) continue;
    busy = errno == EAGAIN;
    if (busy || errno == ECONNREFUSED || errno == ENOENT) return {};
    throw system_error("cannot connect to a Unix socket", errno);
  }
  return socket;
}

Descriptor accept_unix(int listener) {
  Descriptor socket(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  const int error = socket ? 0 : errno;
  if (error != EAGAIN && !limit_advice(error).empty())
    throw system_error("cannot accept a Unix socket", error);
  return socket;
}

Credentials peer_credentials(int socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0)
    throw system_error("cannot ask a Unix socket for its peer", errno);
  return {credentials.pid, credentials.uid};
}

bool send_unix(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors) {
  TUTTI_CHECK(descriptors.size() <= kMostDescriptors);
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> space{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = space.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size_bytes());
  }
  while (true) {
    const auto sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return static_cast<size_t>(sent) == bytes.size();
    if (errno != EINTR) return false;
  }
}

std::optional<UnixMessage> receive_unix(int socket, size_t bytes) {
  UnixMessage result;
  result.bytes.resize(bytes);
  iovec part{result.bytes.data(), bytes};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> space{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = space.data();
  message.msg_controllen = space.size();
  ssize_t count = 0;
  while ((count = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC)) < 0) {
    if (errno == EINTR) continue;
    if (errno == EAGAIN) return {};
    throw Error(ErrorCode::peer_lost, std::strerror(errno));
  }
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t size = header->cmsg_len - CMSG_LEN(0);
    for (size_t at = 0; at + sizeof(int) <= size; at += sizeof(int)) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(header) + at, sizeof descriptor);
      result.descriptors.emplace_back(descriptor);
    }
  }
  // Descriptors of the message are missing, and the kernel does not report why. If fewer than
  // kMostDescriptors arrived, this process has run out of descriptors. If kMostDescriptors arrived,
  // the sender has sent too many.
  if ((message.msg_flags & MSG_CTRUNC) != 0 && result.descriptors.size() < kMostDescriptors)
    throw system_error("cannot take descriptors from another rank", EMFILE);
  if (count == 0) throw Error(ErrorCode::peer_lost, "end of file");
  result.bytes.resize(static_cast<size_t>(count));
  return result;
}

}  // namespace tutti
