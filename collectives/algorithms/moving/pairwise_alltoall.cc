#include "tutti/collectives/algorithms/algorithms.h"
#include "tutti/collectives/algorithms/builder.h"

namespace tutti {

// n-1 rounds, each a permutation: at distance d every rank sends to the rank d ahead and receives
// from the rank d behind. If input and output are the same memory, the input is first copied to
// scratch. Every rank counts a round for this copy, because only some ranks may work in place.
Schedule pairwise_alltoall(const Problem& problem) {
  Builder builder;
  const int size = problem.size, rank = problem.rank;
  const auto to = consecutive(problem.counts), from = consecutive(problem.recv_counts);
  const auto own = static_cast<size_t>(rank);
  Slot source = Slot::input;
  if (problem.in_place && size > 1) {
    const Range all{0, to.back().end()};
    source = Slot::scratch;
    builder.copy(Slot::input, all, source, builder.scratch(all.count));
  }
  if (size > 1) builder.next_round();
  for (int distance = 1; distance < size; ++distance) {
    const int next = (rank + distance) % size, previous = (rank - distance + size) % size;
    builder.send(next, source, to[static_cast<size_t>(next)]);
    builder.recv(previous, Slot::output, from[static_cast<size_t>(previous)]);
    builder.next_round();
  }
  builder.copy(source, to[own], Slot::output, from[own].begin);
  return builder.take();
}

}  // namespace tutti
