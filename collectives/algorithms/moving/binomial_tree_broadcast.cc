#include "tutti/collectives/algorithms/algorithms.h"
#include "tutti/collectives/algorithms/sections.h"

namespace tutti {

// Ranks that have the data send it on at doubling distances: ceil(log2(n)) rounds.
Schedule binomial_tree_broadcast(const Problem& problem) {
  Builder builder;
  const Range all{0, problem.counts[0]};
  if (problem.rank == problem.root) builder.copy(Slot::input, all, Slot::output, 0);
  binomial_broadcast(builder, everyone(problem), problem.root, Slot::input, all);
  return builder.take();
}

}  // namespace tutti
