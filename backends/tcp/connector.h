#pragma once

#include <map>
#include <span>

#include "tutti/backends/backend.h"
#include "tutti/base/descriptor.h"

namespace tutti {

/// Connects this rank with each of the peers by one TCP socket per pair. Each peer must name this
/// rank among its own peers. A rank listens on one address, publishes it in the store (keys
/// tcp/...) and calls the lower ranks while it waits for the higher ones. Both ends of a pair prove
/// that they know the job's secret. If pairs have several sockets, `lane` tells them apart.
///
/// Returns the sockets by rank. At Context::deadline it throws Error(timeout), which names the
/// missing ranks and the last state seen of each. Before the deadline it throws
/// Error(authentication | version | unavailable | peer_lost) for a failure that waiting cannot
/// mend, also if another rank met it.
std::map<int, Descriptor> connect_peers(const Context& context, std::span<const int> peers,
                                        int lane = 0);

}  // namespace tutti
