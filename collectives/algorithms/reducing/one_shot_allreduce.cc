#include "tutti/collectives/algorithms/algorithms.h"
#include "tutti/collectives/algorithms/builder.h"

namespace tutti {

// One round: every rank sends everything to every other rank and reduces all of it in rank order.
// It has the least latency and sends n-1 times the data.
Schedule one_shot_allreduce(const Problem& problem) {
  Builder builder;
  const Range all{0, problem.counts[0]};
  const int64_t begin = builder.scratch((problem.size - 1) * all.count);
  int64_t operand = begin;
  for (int peer = 0; peer < problem.size; ++peer) {
    if (peer == problem.rank) continue;
    builder.send(peer, Slot::input, all);
    builder.recv(peer, Slot::scratch, {operand, all.count});
    operand += all.count;
  }
  builder.reduce(Slot::input, all, {problem.size, problem.rank, begin, all.count}, Slot::output, 0);
  auto schedule = builder.take();
  schedule.scales_at_owner = true;
  schedule.heard_all = 0;
  return schedule;
}

}  // namespace tutti
