#include "tutti/collectives/algorithms/algorithms.h"
#include "tutti/collectives/algorithms/sections.h"

namespace tutti {

// One round: every rank sends each chunk to its owner, which reduces in rank order.
Schedule direct_reduce_scatter(const Problem& problem) {
  Builder builder;
  direct_reduce_scatter(builder, everyone(problem), consecutive(problem.counts), Slot::input, 0);
  auto schedule = builder.take();
  schedule.scales_at_owner = true;
  schedule.heard_all = 0;
  return schedule;
}

}  // namespace tutti
