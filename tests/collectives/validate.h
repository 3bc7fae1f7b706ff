#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tutti/collectives/schedule.h"

namespace tutti {

/// The result of running the schedules of all ranks on symbols instead of numbers.
struct Simulation {
  /// The first error that was found, or "".
  std::string fault;
  /// sent[a][b] is the number of elements that rank a sent to rank b.
  std::vector<std::vector<int64_t>> sent;
  /// The number of rounds from the first to the last message.
  int rounds = 0;
};

/// Runs one segment on all ranks; problems[r] and schedules[r] belong to rank r. At most 64 ranks.
///
/// Checks that rounds ascend and that ranges lie within their slots. In a round there is at most
/// one message for each pair and direction, and it is received in that round with its length.
/// Nothing undefined is read or sent. Memory is not received into while the same round sends from
/// it or receives into it. Reductions combine the same element of different ranks, none of them
/// twice. With scales_at_owner, every element is reduced once, over all ranks in ascending order.
/// Every element of every output is that of the model, by the same operations in the same order on
/// all ranks. If reduces(kind), and in a barrier, every rank has heard from all ranks.
Simulation simulate(std::span<const Problem> problems, std::span<const Schedule> schedules);

}  // namespace tutti
