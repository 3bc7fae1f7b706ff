#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/descriptor.h"

namespace tutti {

/// Sockets in the abstract Unix namespace, which can carry descriptors. A socket has a name but no
/// file, and vanishes with its process. All sockets are non-blocking and close-on-exec.

/// Returns a socket that listens under this name. Throws Error(io).
Descriptor listen_unix(const std::string& name);
/// Returns a connected socket. Returns null if no process listens under this name. Returns null and
/// sets `busy` if the caller must try again. Throws Error(io).
Descriptor connect_unix(const std::string& name, bool& busy);
/// Accepts a waiting connection, or returns null if there is none. Throws Error(io) for a limit of
/// this process or machine.
Descriptor accept_unix(int listener);

struct Credentials {
  pid_t pid = 0;  // 0: the process is in another PID namespace
  uid_t uid = 0;
};
/// Returns the credentials of the process at the other end, for which the kernel vouches. Throws
/// Error(io).
Credentials peer_credentials(int socket);

/// Sends the message as a whole. Returns false if the other end is gone or does not read.
bool send_unix(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors = {});

/// A message that send_unix() sent. receive_unix() takes at most `bytes` bytes and 4 descriptors.
/// It returns nothing if no message has arrived. It throws Error(peer_lost) at the end of the
/// connection.
struct UnixMessage {
  std::vector<std::byte> bytes;
  std::vector<Descriptor> descriptors;
};
std::optional<UnixMessage> receive_unix(int socket, size_t bytes);

}  // namespace tutti
