#include "tutti/collectives/algorithms/algorithms.h"
#include "tutti/collectives/algorithms/sections.h"

namespace tutti {

// n-1 rounds around the ring, between neighbours only.
Schedule ring_allgather(const Problem& problem) {
  if (problem.size == 1) return copy_through(problem);
  Builder builder;
  const auto chunks = consecutive(problem.counts);
  const Range chunk = chunks[static_cast<size_t>(problem.rank)];
  const Range own{0, chunk.count};
  builder.copy(Slot::input, own, Slot::output, chunk.begin);
  ring_allgather(builder, everyone(problem), chunks, Slot::input, own);
  return builder.take();
}

}  // namespace tutti
