#include "tutti/collectives/algorithms/algorithms.h"
#include "tutti/collectives/algorithms/sections.h"

namespace tutti {

// Two levels. First each host sums its members' chunks for every rank of every host. In each round,
// each member sums one chunk: its own in the first round, then the chunks of the ranks of other
// hosts that were dealt to it. The host then sends each of these sums to the rank that owns the
// chunk.
Schedule hierarchical_reduce_scatter(const Problem& problem) {
  Builder builder;
  const HostMap hosts(problem);
  const int rank = problem.rank, host = hosts.host_of(rank);
  const auto chunks = consecutive(problem.counts);
  const auto chunk_of = [&](int owner) { return chunks[static_cast<size_t>(owner)]; };
  const auto& members = hosts.members(host);
  const auto self = static_cast<size_t>(hosts.index_of(rank));

  auto summed_by = hosts.dealt(host);
  for (size_t i = 0; i < members.size(); ++i) summed_by[i].insert(summed_by[i].begin(), members[i]);
  const auto& mine = summed_by[self];
  const auto size = static_cast<int>(members.size());
  const int within = divisor_of(problem.sums, hosts.most_members());
  const int between = divisor_of(problem.sums, hosts.count());
  const int64_t received = builder.scratch((size - 1) * longest(chunks));
  std::vector<int64_t> sums;
  for (const int owner : mine) sums.push_back(builder.scratch(chunk_of(owner).count));
  for (size_t turn = 0; turn <= static_cast<size_t>(hosts.most_dealt()); ++turn) {
    int64_t operand = received;
    for (size_t i = 0; i < members.size(); ++i) {
      if (i == self) continue;
      if (turn < summed_by[i].size())
        builder.send(members[i], Slot::input, chunk_of(summed_by[i][turn]));
      if (turn < mine.size()) {
        const int64_t count = chunk_of(mine[turn]).count;
        builder.recv(members[i], Slot::scratch, {operand, count});
        operand += count;
      }
    }
    if (turn < mine.size()) {
      const Range chunk = chunk_of(mine[turn]);
      builder.reduce(Slot::input, chunk, {size, static_cast<int>(self), received, chunk.count},
                     Slot::scratch, sums[turn], within);
    }
    builder.next_round();
  }

  const int64_t own_count = chunk_of(rank).count;
  const int64_t others = builder.scratch((hosts.count() - 1) * own_count);
  for (size_t turn = 1; turn < mine.size(); ++turn)
    builder.send(mine[turn], Slot::scratch, {sums[turn], chunk_of(mine[turn]).count});
  int64_t operand = others;
  for (int other = 0; other < hosts.count(); ++other) {
    if (other == host) continue;
    builder.recv(hosts.dealt_to(other, rank), Slot::scratch, {operand, own_count});
    operand += own_count;
  }
  builder.reduce(Slot::scratch, {sums[0], own_count}, {hosts.count(), host, others, own_count},
                 Slot::output, 0, between);
  auto schedule = builder.take();
  schedule.divisor = within * between;
  return schedule;
}

}  // namespace tutti
