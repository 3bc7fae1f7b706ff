#pragma once

#include <memory>
#include <span>

#include "tutti/core/calls/communicator_state.h"

namespace tutti {

/// The argument that one rank passes to a split.
struct SplitChoice {
  int color = 0;
  int key = 0;
};

/// Makes the first communicator of these ranks. Throws what complete_options(), join_job() and
/// make_engine() throw.
std::shared_ptr<CommunicatorState> create(Options given);

/// Makes the communicator of the ranks that chose this rank's color, ordered by (key, rank).
/// Returns null for a negative color. `choices` has one entry per rank of `parent`; `number` counts
/// the parent's splits.
std::shared_ptr<CommunicatorState> split(const CommunicatorState& parent, int number,
                                         std::span<const SplitChoice> choices);

/// Makes the communicator of the ranks of `parent` that survived a loss, in their old order. If a
/// rank is lost while they agree or connect, the remaining ranks start again, until they are
/// connected or the deadline passes. Throws Error(timeout) naming who is missing,
/// Error(peer_silent) if the others gave this rank up, Error(unavailable) if the store is gone, or
/// the error that keeps this rank alone from connecting. The ranks in these errors are those of
/// `parent`.
std::shared_ptr<CommunicatorState> shrink(const CommunicatorState& parent, Deadline deadline);

}  // namespace tutti
