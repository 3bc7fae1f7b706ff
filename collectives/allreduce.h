#pragma once

#include "tutti/collectives/schedule.h"

namespace tutti {

/// Ring: reduce-scatter, then allgather, n chunks in 2 (n - 1) rounds to the right neighbour. Least
/// bytes per link, most rounds.
Schedule plan_ring_allreduce(const Problem& problem);
/// Whole vectors exchanged with partners at distance 1, 2, 4 ...: fewest rounds, for small data.
Schedule plan_recursive_doubling_allreduce(const Problem& problem);
/// Rabenseifner: reduce-scatter by recursive halving, allgather by recursive doubling.
Schedule plan_halving_doubling_allreduce(const Problem& problem);
/// Everybody sends all to all and reduces all of it, in rank order: one round.
Schedule plan_one_shot_allreduce(const Problem& problem);
/// Everybody sends each chunk to its owner, who reduces it in rank order and sends it to all.
Schedule plan_two_shot_allreduce(const Problem& problem);

}  // namespace tutti
