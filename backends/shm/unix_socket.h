#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/descriptor.h"

namespace tutti {

/// Sockets in the abstract Unix namespace, which carry descriptors. They have a name but no file,
/// and vanish with their process. All are non-blocking and close-on-exec.

/// Throws Error(io).
Descriptor listen_unix(const std::string& name);
/// Returns null if no process listens there or, with `busy` set, if another try may help. Throws
/// Error(io).
Descriptor connect_unix(const std::string& name, bool& busy);
/// Returns null if no connection waits. Throws Error(io) for a limit of this process or machine.
Descriptor accept_unix(int listener);

struct Credentials {
  pid_t pid = 0;  // 0: a process of another PID namespace
  uid_t uid = 0;
};
/// Returns the credentials of the process at the other end; the kernel vouches for them. Throws
/// Error(io).
Credentials peer_credentials(int socket);

/// Sends the whole message at once. Returns false if the other side is gone or does not read.
bool send_unix(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors = {});

/// A message of send_unix: at most `bytes` bytes and 4 descriptors. receive_unix returns null if
/// none has arrived, and throws Error(peer_lost) at the end of the connection.
struct UnixMessage {
  std::vector<std::byte> bytes;
  std::vector<Descriptor> descriptors;
};
std::optional<UnixMessage> receive_unix(int socket, size_t bytes);

}  // namespace tutti
