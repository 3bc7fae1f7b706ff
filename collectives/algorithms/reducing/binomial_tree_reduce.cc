#include "tutti/collectives/algorithms/algorithms.h"
#include "tutti/collectives/algorithms/sections.h"

namespace tutti {

// Reduces towards the root along the tree of binomial_tree_broadcast. Empty messages then go down
// the tree and carry the verdict (go or veto) to every rank.
Schedule binomial_tree_reduce(const Problem& problem) {
  if (problem.size == 1) return copy_through(problem);
  Builder builder;
  const Group group = everyone(problem);
  const Range all{0, problem.counts[0]};
  const int place = static_cast<int>(group.wrapped(problem.rank - problem.root));
  const bool is_root = place == 0;
  const int64_t received = builder.scratch(all.count);
  const int64_t sum = is_root ? 0 : builder.scratch(all.count);
  const Slot sum_slot = is_root ? Slot::output : Slot::scratch;

  Slot operand = Slot::input;
  Range operand_range = all;
  bool has_sent = false;
  for (int distance = 1; distance < problem.size; distance *= 2) {
    if (!has_sent && (place & distance) != 0) {
      builder.send(group.at(problem.rank - distance), operand, operand_range);
      has_sent = true;
    } else if (!has_sent && place + distance < problem.size) {
      builder.recv(group.at(problem.rank + distance), Slot::scratch, {received, all.count});
      builder.reduce(operand, operand_range, right_from(received), sum_slot, sum);
      operand = sum_slot;
      operand_range = {sum, all.count};
    }
    builder.next_round();
  }
  binomial_broadcast(builder, group, problem.root, Slot::output, {});
  return builder.take();
}

}  // namespace tutti
