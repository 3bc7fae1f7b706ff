#include "tutti/collectives/algorithms/algorithms.h"
#include "tutti/collectives/algorithms/builder.h"

namespace tutti {

// Sends empty messages at doubling distances: ceil(log2(n)) rounds.
Schedule dissemination_barrier(const Problem& problem) {
  Builder builder;
  const int size = problem.size;
  for (int distance = 1; distance < size; distance *= 2) {
    builder.send((problem.rank + distance) % size, Slot::input, {});
    builder.recv((problem.rank - distance + size) % size, Slot::output, {});
    builder.next_round();
  }
  return builder.take();
}

}  // namespace tutti
