#include <algorithm>

#include "tutti/collectives/algorithms/algorithms.h"
#include "tutti/collectives/algorithms/builder.h"

namespace tutti {

// Bruck's: ceil(log2(n)) rounds for any n. In scratch the chunks stand in the order own rank, next
// rank, and so on around; in each round a rank gets from a doubling distance as many chunks as it
// has, and at the end two copies turn the circle to where rank 0 comes first.
Schedule bruck_allgather(const Problem& problem) {
  Builder builder;
  const int size = problem.size, rank = problem.rank;
  std::vector<int64_t> counts(problem.counts.begin(), problem.counts.end());
  std::rotate(counts.begin(), counts.begin() + rank, counts.end());
  auto chunks = consecutive(counts);
  const int64_t total = chunks.back().end();
  chunks.push_back({total, 0});
  const int64_t base = builder.scratch(total);
  const auto run = [&](int first, int last) {  // chunks [first, last) of the circle
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
