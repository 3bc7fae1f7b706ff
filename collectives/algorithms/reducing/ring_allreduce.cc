#include "tutti/collectives/algorithms/algorithms.h"
#include "tutti/collectives/algorithms/sections.h"

namespace tutti {

// Bandwidth-optimal: every rank sends and receives 2(n-1)/n of the data, to and from its neighbours
// only. The data is split into one chunk per rank. Partial sums of chunks travel around the ring
// until each rank holds one finished chunk; then the finished chunks travel around.
Schedule ring_allreduce(const Problem& problem) {
  if (problem.size == 1) return copy_through(problem);
  Builder builder;
  const Group group = everyone(problem);
  const auto chunks = cut({0, problem.counts[0]}, problem.size);
  const Range own = chunks[static_cast<size_t>(problem.rank)];
  ring_reduce_scatter(builder, group, chunks, Slot::input, own.begin);
  ring_allgather(builder, group, chunks, Slot::output, own);
  auto schedule = builder.take();
  schedule.heard_all = problem.size - 2;
  return schedule;
}

}  // namespace tutti
