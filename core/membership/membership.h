#pragma once

#include <memory>
#include <span>

#include "tutti/core/calls/communicator_state.h"

namespace tutti {

/// What a rank says when a communicator is split.
struct SplitChoice {
  int color = 0;
  int key = 0;
};

/// The first communicator of these ranks. Throws what complete_options(), join_job() and
/// make_engine() do.
std::shared_ptr<CommunicatorState> create(Options given);

/// The communicator of the ranks that chose this rank's color, ordered by (key, rank); null for a
/// negative color. `choices` are those of all ranks of `parent`; `number` counts its splits.
std::shared_ptr<CommunicatorState> split(const CommunicatorState& parent, int number,
                                         std::span<const SplitChoice> choices);

/// After a loss: the communicator of the survivors of `parent`, in old order. If a rank is lost
/// while they agree or connect, those that are left begin anew, until they are connected or the
/// deadline passes. Throws Error(timeout) naming who is missing, Error(peer_silent) if the others
/// gave this rank up, Error(unavailable) if the store is gone, or what keeps this rank alone from
/// connecting; ranks are those of `parent`.
std::shared_ptr<CommunicatorState> shrink(const CommunicatorState& parent, Deadline deadline);

}  // namespace tutti
