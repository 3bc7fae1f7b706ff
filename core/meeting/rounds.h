#pragma once

#include "tutti/core/meeting/attempt.h"

namespace tutti {

/// A round is one attempt of a job to make a first communicator. Round r has its keys under JOB/r
/// in the store. All ranks go through the same rounds, because each round ends for all of them or
/// for none. When a round's communicator is made and all its ranks have left the round, the store
/// erases this round and the failed rounds before it. If the ranks of a job never meet, the store
/// keeps the last kKeptRounds rounds. So a rank that comes late still learns of these failures.
inline constexpr int64_t kKeptRounds = 16;

/// Enters this rank into the first round that has not ended, and sets the fields of the membership
/// that depend on the round. Throws Error(invalid_argument) if another process has entered as this
/// rank. Also throws the failure of an earlier round if this process has not thrown it yet.
void enter_round(const Options& options, Membership& membership);

/// Leaves the round after this rank's communicator is made. This rank must not read any key of the
/// round afterwards.
void leave_round(const Options& options, const Membership& membership) noexcept;

}  // namespace tutti
