#include "tutti/collectives/algorithms/algorithms.h"
#include "tutti/collectives/algorithms/sections.h"

namespace tutti {

// Two levels. The data is split into m rails, where m is the smallest number of ranks on any host.
// Each host reduces rail i to its member i. The members i of all hosts then run a ring over rail i.
// Finally each host gathers the rails. With h hosts, each host sends 2(h-1)/h of the data to other
// hosts, however many ranks each host has.
//
// Sums::scaled do not use a ring, because a ring would need another divisor in each round. Instead
// each host's member i reduces one chunk of rail i from all hosts.
Schedule hierarchical_allreduce(const Problem& problem) {
  Builder builder;
  const HostMap hosts(problem);
  const int host = hosts.host_of(problem.rank);
  const auto place = static_cast<size_t>(hosts.index_of(problem.rank));
  const Group local{hosts.members(host), static_cast<int>(place)};
  const auto rails = cut({0, problem.counts[0]}, hosts.least_members());
  const bool has_rail = place < rails.size();

  const bool is_scaled = problem.sums == Sums::scaled;
  const int within = divisor_of(problem.sums, hosts.most_members());
  const int between = divisor_of(problem.sums, hosts.count());
  direct_reduce_scatter(builder, local, rails, Slot::input, has_rail ? rails[place].begin : 0,
                        within);
  if (has_rail) {
    Group across{{}, host};
    for (int other = 0; other < hosts.count(); ++other)
      across.ranks.push_back(hosts.members(other)[place]);
    const auto chunks = cut(rails[place], hosts.count());
    const Range own = chunks[static_cast<size_t>(host)];
    if (is_scaled) {
      direct_reduce_scatter(builder, across, chunks, Slot::output, own.begin, between);
      direct_allgather(builder, across, chunks);
    } else {
      ring_reduce_scatter(builder, across, chunks, Slot::output, own.begin);
      ring_allgather(builder, across, chunks, Slot::output, own);
    }
  } else {
    builder.next_round(is_scaled ? 2 : 2 * (hosts.count() - 1));
  }
  direct_allgather(builder, local, rails);
  auto schedule = builder.take();
  schedule.divisor = within * between;
  return schedule;
}

}  // namespace tutti
