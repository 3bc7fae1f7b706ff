#include <bit>

#include "tutti/collectives/algorithms/algorithms.h"
#include "tutti/collectives/algorithms/fold.h"

namespace tutti {

// log2(n) rounds in which pairs at doubling distances exchange all of their data. It suits small
// data on many ranks. The lower rank's operand is always the left one, so that both ranks of a pair
// compute the same bits.
Schedule recursive_doubling_allreduce(const Problem& problem) {
  if (problem.size == 1) return copy_through(problem);
  Builder builder;
  const Fold fold(problem);
  const Range all{0, problem.counts[0]};
  SlotElement operand = fold.fold(builder);
  const int rounds = std::countr_zero(static_cast<unsigned>(fold.core()));
  if (fold.is_in_core()) {
    const int64_t received = builder.scratch(all.count);
    for (int distance = 1; distance < fold.core(); distance *= 2) {
      const int peer = problem.rank ^ distance;
      const Range own{operand.element, all.count};
      builder.send(peer, operand.slot, own);
      builder.recv(peer, Slot::scratch, {received, all.count});
      builder.reduce(operand.slot, own,
                     peer < problem.rank ? left_from(received) : right_from(received), Slot::output,
                     0);
      operand = {Slot::output, 0};
      builder.next_round();
    }
  } else {
    builder.next_round(rounds);
  }
  fold.unfold(builder);
  return builder.take();
}

}  // namespace tutti
