#include <bit>
#include <vector>

#include "tutti/collectives/algorithms/algorithms.h"
#include "tutti/collectives/algorithms/fold.h"

namespace tutti {

// Rabenseifner's: a reduce-scatter by halving the range at halving distance, then an allgather back
// along the same way. A ring's bytes in 2 log2(n) rounds.
Schedule halving_doubling_allreduce(const Problem& problem) {
  if (problem.size == 1) return copy_through(problem);
  Builder builder;
  const Fold fold(problem);
  Slot operand = fold.fold(builder);
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
  const int64_t received = builder.scratch(range.count - range.count / 2);
  for (int distance = fold.core() / 2; distance > 0; distance /= 2) {
    const int peer = problem.rank ^ distance;
    const auto halves = cut(range, 2);
    const bool is_lower = problem.rank < peer;
    const Range kept = halves[is_lower ? 0 : 1], given = halves[is_lower ? 1 : 0];
    builder.send(peer, operand, given);
    builder.recv(peer, Slot::scratch, {received, kept.count});
    builder.reduce(operand, kept, is_lower ? right_from(received) : left_from(received),
                   Slot::output, kept.begin);
    builder.next_round();
    operand = Slot::output;
    halvings.push_back({peer, kept, given});
    range = kept;
  }
  for (; !halvings.empty(); halvings.pop_back()) {
    const auto& [peer, kept, given] = halvings.back();
    builder.send(peer, Slot::output, kept);
    builder.recv(peer, Slot::output, given);
    builder.next_round();
  }
  fold.unfold(builder);
  return builder.take();
}

}  // namespace tutti
