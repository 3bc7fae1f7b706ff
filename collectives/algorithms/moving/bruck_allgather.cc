#include <algorithm>

#include "tutti/collectives/algorithms/algorithms.h"
#include "tutti/collectives/algorithms/builder.h"

namespace tutti {

// Bruck's algorithm: ceil(log2(n)) rounds for any n. Scratch holds the chunks in ring order,
// beginning with this rank's. In each round a rank receives as many chunks as it already has, from
// a rank at twice the distance of the round before. At the end two copies rotate the chunks into
// rank order.
Schedule bruck_allgather(const Problem& problem) {
  Builder builder;
  const int size = problem.size, rank = problem.rank;
  std::vector<int64_t> counts(problem.counts.begin(), problem.counts.end());
  std::rotate(counts.begin(), counts.begin() + rank, counts.end());
  auto chunks = consecutive(counts);
  const int64_t total = chunks.back().end();
  chunks.push_back({total, 0});
  const int64_t base = builder.scratch(total);
  const auto run = [&](int first, int last) {  // chunks [first, last) in ring order
    const int64_t begin = chunks[static_cast<size_t>(first)].begin;
    return Range{base + begin, chunks[static_cast<size_t>(last)].begin - begin};
  };

  builder.copy(Slot::input, {0, counts[0]}, Slot::scratch, base);
  builder.next_round();
  for (int have = 1; have < size; have *= 2) {
    const int more = std::min(have, size - have);
    builder.send((rank - have + size) % size, Slot::scratch, run(0, more));
    builder.recv((rank + have) % size, Slot::scratch, run(have, have + more));
    builder.next_round();
  }
  const Range upper = run(0, size - rank), lower = run(size - rank, size);
  builder.copy(Slot::scratch, upper, Slot::output, lower.count);
  builder.copy(Slot::scratch, lower, Slot::output, 0);
  return builder.take();
}

}  // namespace tutti
