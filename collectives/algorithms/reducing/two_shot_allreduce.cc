#include "tutti/collectives/algorithms/algorithms.h"
#include "tutti/collectives/algorithms/sections.h"

namespace tutti {

// Two rounds: each rank owns a chunk, receives every rank's part of it, reduces it in rank order
// and sends the result to every rank. It sends as few bytes as a ring, but between all pairs at the
// same time.
Schedule two_shot_allreduce(const Problem& problem) {
  Builder builder;
  const Group group = everyone(problem);
  const auto chunks = cut({0, problem.counts[0]}, problem.size);
  direct_reduce_scatter(builder, group, chunks, Slot::input,
                        chunks[static_cast<size_t>(problem.rank)].begin);
  direct_allgather(builder, group, chunks);
  auto schedule = builder.take();
  schedule.scales_at_owner = true;
  schedule.heard_all = 0;
  return schedule;
}

}  // namespace tutti
