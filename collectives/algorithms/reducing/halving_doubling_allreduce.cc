#include <bit>
#include <vector>

#include "tutti/collectives/algorithms/algorithms.h"
#include "tutti/collectives/algorithms/fold.h"

namespace tutti {

// Rabenseifner's algorithm: a reduce-scatter by halving the range with a partner, then an allgather
// back along the same path. It sends as many bytes as a ring, in 2 log2(n) rounds. The first
// partners are neighbours, because the first rounds exchange the most data, and neighbours are on
// one host if ranks are numbered host by host. Sums stay in scratch until the verdicts (go or veto)
// of all ranks are known.
Schedule halving_doubling_allreduce(const Problem& problem) {
  if (problem.size == 1) return copy_through(problem);
  Builder builder;
  const Fold fold(problem);
  SlotElement operand = fold.fold(builder);  // position of the first element of `range`
  const int rounds = std::countr_zero(static_cast<unsigned>(fold.core()));
  if (!fold.is_in_core()) {
    builder.next_round(2 * rounds);
    fold.unfold(builder);
    return builder.take();
  }

  struct Halving {
    int peer;
    Range kept, given;
  };
  std::vector<Halving> halvings;
  Range range{0, problem.counts[0]};
  for (int distance = 1; distance < fold.core(); distance *= 2) {
    const int peer = problem.rank ^ distance;
    const auto halves = cut(range, 2);
    const bool is_lower = problem.rank < peer;
    const Range kept = halves[is_lower ? 0 : 1], given = halves[is_lower ? 1 : 0];
    const auto own = [&](const Range& half) {
      return Range{operand.element + half.begin - range.begin, half.count};
    };
    const int64_t sum = builder.scratch(kept.count);
    const bool is_last = 2 * distance == fold.core();
    builder.send(peer, operand.slot, own(given));
    builder.recv(peer, Slot::scratch, {sum, kept.count});
    builder.reduce(operand.slot, own(kept), is_lower ? right_from(sum) : left_from(sum),
                   is_last ? Slot::output : Slot::scratch, is_last ? kept.begin : sum);
    builder.next_round();
    halvings.push_back({peer, kept, given});
    operand = {Slot::scratch, sum};
    range = kept;
  }
  for (; !halvings.empty(); halvings.pop_back()) {
    const auto& [peer, kept, given] = halvings.back();
    builder.send(peer, Slot::output, kept);
    builder.recv(peer, Slot::output, given);
    builder.next_round();
  }
  fold.unfold(builder);
  auto schedule = builder.take();
  schedule.heard_all = rounds;  // round 0 belongs to the fold
  return schedule;
}

}  // namespace tutti
