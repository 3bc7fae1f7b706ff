#pragma once

#include <memory>

#include "tutti/core/engine/engine.h"
#include "tutti/core/meeting/attempt.h"

namespace tutti {

/// Opens the job's store as the options say, and takes this rank's place in the first attempt of
/// the job that is not over. All ranks skip the same attempts: those that failed or became a
/// communicator. Throws Error(invalid_argument) if another process has this rank's place.
Membership join_job(const Options& options);

/// Meets the other ranks in the store, agrees with them on version and settings, connects the
/// backend, makes the engine and starts it. All ranks succeed, or all throw an Error. It names the
/// rank that is missing, dead or different, or the limit that a rank has reached.
std::shared_ptr<Engine> make_engine(const Options& options, const Membership& membership);

}  // namespace tutti
