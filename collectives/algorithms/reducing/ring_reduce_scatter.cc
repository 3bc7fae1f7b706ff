#include "tutti/collectives/algorithms/algorithms.h"
#include "tutti/collectives/algorithms/sections.h"

namespace tutti {

// The first half of the ring allreduce, with the caller's chunks.
Schedule ring_reduce_scatter(const Problem& problem) {
  if (problem.size == 1) return copy_through(problem);
  Builder builder;
  ring_reduce_scatter(builder, everyone(problem), consecutive(problem.counts), Slot::input, 0);
  auto schedule = builder.take();
  schedule.heard_all = problem.size - 2;
  return schedule;
}

}  // namespace tutti
