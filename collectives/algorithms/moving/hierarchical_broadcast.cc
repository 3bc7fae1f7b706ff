#include <bit>

#include "tutti/collectives/algorithms/algorithms.h"
#include "tutti/collectives/algorithms/sections.h"

namespace tutti {

// Broadcasts along a binomial tree over one leader per host (the root is the leader of its host),
// then along one within each host. So the data is sent to each host once.
Schedule hierarchical_broadcast(const Problem& problem) {
  Builder builder;
  const HostMap hosts(problem);
  const Range all{0, problem.counts[0]};
  const int rank = problem.rank, host = hosts.host_of(rank);
  const int root_host = hosts.host_of(problem.root);
  Group leaders{{}, host};
  for (int other = 0; other < hosts.count(); ++other)
    leaders.ranks.push_back(other == root_host ? problem.root : hosts.members(other)[0]);
  const int leader = leaders.at(host);
  const Slot from = rank == problem.root ? Slot::input : Slot::output;

  if (rank == problem.root) builder.copy(Slot::input, all, Slot::output, 0);
  if (rank == leader)
    binomial_broadcast(builder, leaders, root_host, from, all);
  else
    builder.next_round(std::bit_width(static_cast<unsigned>(hosts.count() - 1)));
  binomial_broadcast(builder, {hosts.members(host), hosts.index_of(rank)}, hosts.index_of(leader),
                     from, all);
  return builder.take();
}

}  // namespace tutti
