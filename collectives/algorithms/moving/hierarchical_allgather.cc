#include "tutti/collectives/algorithms/algorithms.h"
#include "tutti/collectives/algorithms/builder.h"

namespace tutti {

// Each chunk is sent to every other host once. The owner of a chunk sends it to the members of its
// own host, and to one member of each other host (HostMap::dealt_to). That member sends the chunk
// to the other members of its host.
Schedule hierarchical_allgather(const Problem& problem) {
  Builder builder;
  const HostMap hosts(problem);
  const int rank = problem.rank, host = hosts.host_of(rank);
  const auto chunks = consecutive(problem.counts);
  const auto chunk_of = [&](int owner) { return chunks[static_cast<size_t>(owner)]; };
  const Range own{0, chunk_of(rank).count};
  const auto& members = hosts.members(host);
  const auto dealt = hosts.dealt(host);
  const auto& mine = dealt[static_cast<size_t>(hosts.index_of(rank))];

  for (const int member : members) {
    if (member == rank) continue;
    builder.send(member, Slot::input, own);
    builder.recv(member, Slot::output, chunk_of(member));
  }
  for (int other = 0; other < hosts.count(); ++other)
    if (other != host) builder.send(hosts.dealt_to(other, rank), Slot::input, own);
  for (const int foreign : mine) builder.recv(foreign, Slot::output, chunk_of(foreign));
  builder.copy(Slot::input, own, Slot::output, chunk_of(rank).begin);
  builder.next_round();

  for (size_t turn = 0; turn < static_cast<size_t>(hosts.most_dealt()); ++turn) {
    for (size_t i = 0; i < members.size(); ++i) {
      if (members[i] == rank) continue;
      if (turn < mine.size()) builder.send(members[i], Slot::output, chunk_of(mine[turn]));
      if (turn < dealt[i].size()) builder.recv(members[i], Slot::output, chunk_of(dealt[i][turn]));
    }
    builder.next_round();
  }
  return builder.take();
}

}  // namespace tutti
