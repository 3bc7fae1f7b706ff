#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tutti/collectives/schedule.h"

namespace tutti {

/// What came of running the schedules of all ranks on symbols instead of numbers.
struct Simulation {
  /// The first thing that was wrong, in words; empty: nothing was.
  std::string fault;
  /// sent[a][b]: elements that rank a sent to rank b.
  std::vector<std::vector<int64_t>> sent;
  /// Rounds from the first to the last message.
  int rounds = 0;
};

/// Runs one segment on all ranks; problems[r] and schedules[r] are rank r's. At most 64 ranks.
///
/// Checked: rounds ascend; ranges lie within their slots; at most one message a pair, direction and
/// round, and each is received with its length in its round; nothing undefined is read or sent; no
/// memory is received into that is being sent from or received into in the same round; reductions
/// combine the same element of different ranks, none twice; where scales_at_owner, every element is
/// reduced once, over all ranks in ascending order; every element of every output is the model's,
/// of the same operations in the same order on all ranks; and where reduces(kind), and in a
/// barrier, every rank has heard from all.
Simulation simulate(std::span<const Problem> problems, std::span<const Schedule> schedules);

}  // namespace tutti
