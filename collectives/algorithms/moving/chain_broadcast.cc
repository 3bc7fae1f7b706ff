#include "tutti/collectives/algorithms/algorithms.h"
#include "tutti/collectives/algorithms/builder.h"

namespace tutti {

// Each rank sends to the next, beginning with the root. With several segments in flight all links
// are busy at the same time, and no rank sends the data more than once. This suits large data.
Schedule chain_broadcast(const Problem& problem) {
  Builder builder;
  const Range all{0, problem.counts[0]};
  const int size = problem.size, rank = problem.rank;
  const int place = (rank - problem.root + size) % size;
  const bool is_root = place == 0;
  if (is_root) {
    builder.copy(Slot::input, all, Slot::output, 0);
  } else {
    builder.next_round(place - 1);
    builder.recv((rank - 1 + size) % size, Slot::output, all);
    builder.next_round();
  }
  if (place < size - 1) builder.send((rank + 1) % size, is_root ? Slot::input : Slot::output, all);
  return builder.take();
}

}  // namespace tutti
