#pragma once

#include "tutti/collectives/schedule.h"

/// One function per algorithm, each in a file of the same name. The folder `moving` has the
/// algorithms that only move elements, and `reducing` has the algorithms that reduce.
/// collectives/schedule.cc lists all algorithms.
namespace tutti {

Schedule ring_allreduce(const Problem& problem);
Schedule halving_doubling_allreduce(const Problem& problem);
Schedule recursive_doubling_allreduce(const Problem& problem);
Schedule one_shot_allreduce(const Problem& problem);
Schedule two_shot_allreduce(const Problem& problem);
Schedule hierarchical_allreduce(const Problem& problem);

Schedule ring_reduce_scatter(const Problem& problem);
Schedule direct_reduce_scatter(const Problem& problem);
Schedule hierarchical_reduce_scatter(const Problem& problem);

Schedule ring_allgather(const Problem& problem);
Schedule direct_allgather(const Problem& problem);
Schedule bruck_allgather(const Problem& problem);
Schedule hierarchical_allgather(const Problem& problem);

Schedule binomial_tree_broadcast(const Problem& problem);
Schedule chain_broadcast(const Problem& problem);
Schedule hierarchical_broadcast(const Problem& problem);

Schedule binomial_tree_reduce(const Problem& problem);
Schedule direct_reduce(const Problem& problem);

Schedule direct_gather(const Problem& problem);
Schedule direct_scatter(const Problem& problem);
Schedule pairwise_alltoall(const Problem& problem);
Schedule direct_send(const Problem& problem);
Schedule direct_recv(const Problem& problem);
Schedule dissemination_barrier(const Problem& problem);

}  // namespace tutti
