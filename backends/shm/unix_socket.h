#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/base/descriptor.h"

namespace tutti {

/// Sockets in the abstract Unix namespace of a network namespace, which carry descriptors: they
/// have a name but no file, and vanish with their process. All are non-blocking and close-on-exec.

/// Throws Error(io).
Descriptor listen_unix(const std::string& name);
/// Null if no process listens there. Throws Error(io); `busy` is set if it is worth trying again.
Descriptor connect_unix(const std::string& name, bool& busy);
/// Null if no connection waits. Throws Error(io) for a limit of this process or machine.
Descriptor accept_unix(int listener);

struct Credentials {
  pid_t pid = 0;  // 0: of another process namespace
  uid_t uid = 0;
};
/// Of the process that connected, or that listens; the kernel vouches for it. Throws Error(io).
Credentials peer_credentials(int socket);

/// Sends all of it at once; false if the other side is gone or does not read.
bool send_unix(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors = {});

/// One message, as sent by send_unix. Null: not there yet. At most `bytes` and 4 descriptors;
/// throws Error(peer_lost) at the end of the connection.
struct UnixMessage {
  std::vector<std::byte> bytes;
  std::vector<Descriptor> descriptors;
};
std::optional<UnixMessage> receive_unix(int socket, size_t bytes);

}  // namespace tutti
