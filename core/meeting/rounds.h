#pragma once

#include "tutti/core/meeting/attempt.h"

namespace tutti {

/// The attempts of a job to make a first communicator: round r is the one under JOB/r in the store.
/// All ranks go through the same rounds, because each is over for all of them or for none. The
/// store forgets a round once its communicator is made and all its ranks have left it, and with it
/// those that failed before; of a job that never meets it keeps the last kKeptRounds, so that a
/// rank that comes late hears of so many failures.
inline constexpr int64_t kKeptRounds = 16;

/// Takes this rank's place in the first round that is not over, and fills in what of the membership
/// follows from it. Throws Error(invalid_argument) if another process has that place, and the
/// failure of a round of which this process has not heard yet.
void enter_round(const Options& options, Membership& membership);

/// The communicator of this rank is made, and it looks at nothing of its round any more.
void leave_round(const Options& options, const Membership& membership) noexcept;

}  // namespace tutti
