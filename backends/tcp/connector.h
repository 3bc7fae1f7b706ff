#pragma once

#include <map>
#include <span>

#include "tutti/backends/backend.h"
#include "tutti/base/descriptor.h"

namespace tutti {

/// Connects this rank with each of the peers by one TCP socket per pair. Each peer must name this
/// rank among its own peers. A rank listens on one address, publishes it in the store (keys
/// tcp/...), calls the lower ranks and waits for the higher ones. Both ends of a pair prove that
/// they know the job's secret. If pairs have several sockets, there is one call of this function
/// per socket, and `lane` is the socket's index.
///
/// Returns the sockets by rank. At Context::deadline it throws Error(timeout), which names the
/// missing ranks and the last state seen of each. If waiting cannot mend a failure of this rank or
/// of another, it throws Error(authentication | version | unavailable | peer_lost) before the
/// deadline.
std::map<int, Descriptor> connect_peers(const Context& context, std::span<const int> peers,
                                        int lane = 0);

}  // namespace tutti
