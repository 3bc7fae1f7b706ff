#pragma once

#include "tutti/core/meeting/attempt.h"

namespace tutti {

/// Rounds are the attempts of a job to make a first communicator; round r has its keys under JOB/r
/// in the store. All ranks go through the same rounds, because each round is over for all of them
/// or for none. Once a round's communicator is made and all its ranks have left the round, the
/// store forgets it and the failed rounds before it. A job whose ranks never meet keeps the last
/// kKeptRounds rounds, so a rank that comes late learns of this many failures.
inline constexpr int64_t kKeptRounds = 16;

/// Takes this rank's place in the first round that is not over, and fills in the membership's
/// fields that depend on it. Throws Error(invalid_argument) if another process has the place. Also
/// throws the failure of an earlier round if this process has not thrown it yet.
void enter_round(const Options& options, Membership& membership);

/// Leaves the round after this rank's communicator is made. This rank reads no key of the round
/// after this.
void leave_round(const Options& options, const Membership& membership) noexcept;

}  // namespace tutti
