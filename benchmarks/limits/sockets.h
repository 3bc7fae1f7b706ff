#pragma once

#include "benchmarks/common/flags.h"
#include "benchmarks/common/fork_team.h"

namespace tutti::benchmarks {

/// Plain TCP sockets with the pattern of a ring allreduce: every rank sends 2(n-1)/n of the bytes
/// to its right and receives as many from its left, both at once, by a given congestion control and
/// number of sockets. No arithmetic, no protocol: what is left is the network.
void run_sockets(const Flags& flags, ForkTeam& team);

}  // namespace tutti::benchmarks
