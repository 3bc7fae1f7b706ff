#pragma once

#include "tutti/collectives/schedule.h"

namespace tutti {

/// Every rank's part straight to every rank: one round, n - 1 messages each.
Schedule plan_direct_allgather(const Problem& problem);
/// Every part straight to its owner, who reduces in rank order.
Schedule plan_direct_reduce_scatter(const Problem& problem);
Schedule plan_direct_gather(const Problem& problem);
Schedule plan_direct_scatter(const Problem& problem);
/// All to the root, which reduces in rank order.
Schedule plan_direct_reduce(const Problem& problem);
/// ceil(log2 n) rounds from or to the root.
Schedule plan_binomial_broadcast(const Problem& problem);
Schedule plan_binomial_reduce(const Problem& problem);
/// Round k: to rank + k, from rank - k.
Schedule plan_pairwise_alltoall(const Problem& problem);
Schedule plan_send(const Problem& problem);
Schedule plan_recv(const Problem& problem);
/// Dissemination: round k to rank + 2^k, from rank - 2^k.
Schedule plan_dissemination_barrier(const Problem& problem);

}  // namespace tutti
