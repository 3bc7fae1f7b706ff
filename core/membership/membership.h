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

/// Makes the first communicator of a process. Throws the errors of complete_options(), join_job()
/// and make_engine().
std::shared_ptr<CommunicatorState> create(Options given);

/// Makes the communicator of the ranks that chose this rank's color, ordered by (key, rank).
/// Returns null for a negative color. `choices` has one entry per rank of `parent`. `number` is the
/// index of this split among the parent's splits.
std::shared_ptr<CommunicatorState> split(const CommunicatorState& parent, int number,
                                         std::span<const SplitChoice> choices);

/// Makes the communicator of the ranks of `parent` that survived a loss, in their old order. If a
/// rank is lost while they agree or connect, the remaining ranks start again, until they are
/// connected or the deadline passes. Throws Error(timeout) that names the missing ranks. Throws
/// Error(peer_silent) if the other ranks have excluded this rank, and Error(unavailable) if the
/// store is gone. If only this rank cannot connect, throws the reason. The ranks in these errors
/// are ranks of `parent`.
std::shared_ptr<CommunicatorState> shrink(const CommunicatorState& parent, Deadline deadline);

}  // namespace tutti
