#pragma once

#include <map>
#include <span>

#include "tutti/backends/backend.h"
#include "tutti/base/descriptor.h"

namespace tutti {

/// Connects this rank with each of the peers, who must name it among theirs, by one TCP socket a
/// pair. Each rank listens on one address, publishes it in the store (keys tcp/...) and then calls
/// the lower ranks while it waits for the higher ones; every pair proves the job's secret. Where
/// pairs have several sockets, `lane` tells them apart.
///
/// Returns the sockets by rank. Throws at Context::deadline Error(timeout) that says which ranks
/// are missing and what was seen of each; before it, Error(authentication | version | unavailable |
/// peer_lost) for what waiting cannot mend, also if another rank failed so.
std::map<int, Descriptor> connect_peers(const Context& context, std::span<const int> peers,
                                        int lane = 0);

}  // namespace tutti
