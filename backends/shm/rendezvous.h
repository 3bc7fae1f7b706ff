#pragma once

#include <map>
#include <memory>
#include <span>

#include "tutti/backends/backend.h"
#include "tutti/backends/shm/shm_channel.h"

namespace tutti {

/// Connects this rank with each of the peers, who must name it among theirs. Every rank listens on
/// a Unix socket of a random name, which it tells through the store (keys shm/...) together with a
/// random token; the higher rank of a pair calls the lower one, shows that it knows the token and
/// sends it memory and doorbells. Only a process of our user and network namespace can come
/// through; a caller that does not know the token is turned away.
///
/// Throws at Context::deadline Error(timeout) that names the missing ranks; before it,
/// Error(authentication | unavailable | peer_lost) for what waiting cannot mend, also if a peer
/// failed so.
///
/// `memory`: a descriptor that every peer gets (ShmEnds::memory), as this rank gets theirs; -1 if
/// none is wanted, on all ranks.
std::map<int, std::unique_ptr<ShmEnds>> connect_through_memory(const Context& context,
                                                               std::span<const int> peers,
                                                               int memory = -1);

}  // namespace tutti
