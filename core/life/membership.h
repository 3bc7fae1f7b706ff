#pragma once

#include <memory>
#include <span>

#include "tutti/core/life/communicator_state.h"

namespace tutti {

/// What a rank says when a communicator is split.
struct SplitChoice {
  int color = 0;
  int key = 0;
};

/// The communicator of the ranks that chose this rank's color, ordered by (key, rank); null for a
/// negative color. `choices` are those of all ranks of `parent`; `number` counts its splits.
std::shared_ptr<CommunicatorState> split(const CommunicatorState& parent, int number,
                                         std::span<const SplitChoice> choices);

/// After a loss: the communicator of the survivors of `parent`, in old order. Throws
/// Error(timeout | unavailable | peer_silent).
std::shared_ptr<CommunicatorState> shrink(const CommunicatorState& parent, Deadline deadline);

}  // namespace tutti
