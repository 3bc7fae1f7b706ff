#include "tutti/collectives/algorithms/algorithms.h"
#include "tutti/collectives/algorithms/builder.h"

namespace tutti {

// Every rank sends to the root, which reduces in rank order. The root's answer carries the verdict
// (go or veto).
Schedule direct_reduce(const Problem& problem) {
  Builder builder;
  const Range all{0, problem.counts[0]};
  const bool is_root = problem.rank == problem.root;
  if (is_root) {
    const int64_t begin = builder.scratch((problem.size - 1) * all.count);
    int64_t operand = begin;
    for (int peer = 0; peer < problem.size; ++peer) {
      if (peer == problem.root) continue;
      builder.recv(peer, Slot::scratch, {operand, all.count});
      operand += all.count;
    }
    builder.reduce(Slot::input, all, {problem.size, problem.rank, begin, all.count}, Slot::output,
                   0);
    builder.next_round();
    for (int peer = 0; peer < problem.size; ++peer)
      if (peer != problem.root) builder.send(peer, Slot::output, {});
  } else {
    builder.send(problem.root, Slot::input, all);
    builder.next_round();
    builder.recv(problem.root, Slot::output, {});
  }
  auto schedule = builder.take();
  schedule.scales_at_owner = true;
  return schedule;
}

}  // namespace tutti
