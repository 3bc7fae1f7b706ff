#pragma once

#include <map>
#include <memory>
#include <span>

#include "tutti/backends/backend.h"
#include "tutti/backends/shm/shm_channel.h"

namespace tutti {

/// Connects this rank with each of the peers, which must name it among theirs. Every rank with
/// higher peers listens on a Unix socket with a random name. It publishes the name in the store
/// (keys shm/...) together with a random token. The higher rank of a pair calls the lower one,
/// shows that it knows the token and sends it memory and doorbells. Only a process of our user and
/// network namespace can connect; a caller that does not know the token is turned away.
///
/// At Context::deadline it throws Error(timeout), which names the missing ranks. Before the
/// deadline it throws Error(authentication | unavailable | peer_lost) for a failure that waiting
/// cannot mend, also if a peer met it.
///
/// `memory` is a descriptor that every peer receives (ShmEnds::memory), as this rank receives
/// theirs. On all ranks or on none it is -1: nothing is exchanged.
std::map<int, std::unique_ptr<ShmEnds>> connect_through_memory(const Context& context,
                                                               std::span<const int> peers,
                                                               int memory = -1);

}  // namespace tutti
