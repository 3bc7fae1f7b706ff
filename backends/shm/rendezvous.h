#pragma once

#include <map>
#include <memory>
#include <span>

#include "tutti/backends/backend.h"
#include "tutti/backends/shm/shm_channel.h"

namespace tutti {

/// Connects this rank with each of the peers. Each peer must name this rank among its own peers.
/// Every rank that has higher peers listens on a Unix socket with a random name, and publishes this
/// name and a random token in the store (keys shm/...). The higher rank of a pair calls the lower
/// one, shows that it knows the token, and sends its memory and bells. Only a process of our user
/// and network namespace can connect. A caller that does not know the token is turned away.
///
/// At Context::deadline it throws Error(timeout), which names the missing ranks. If waiting cannot
/// mend a failure of this rank or of a peer, it throws Error(authentication | unavailable |
/// peer_lost) before the deadline.
///
/// `memory` is a descriptor that every peer receives as ShmEnds::memory; this rank receives theirs
/// in the same way. If it is -1, it must be -1 on all ranks, and no memory is exchanged.
std::map<int, std::unique_ptr<ShmEnds>> connect_through_memory(const Context& context,
                                                               std::span<const int> peers,
                                                               int memory = -1);

}  // namespace tutti
