#pragma once

#include <memory>

#include "tutti/core/engine/engine.h"
#include "tutti/core/meeting/attempt.h"

namespace tutti {

/// Opens the job's store as the options say, and takes this rank's place in the first attempt of
/// the job that is not over: an attempt that failed, or became a communicator, is left behind by
/// all ranks alike. Throws Error(invalid_argument) if another process has that place.
Membership join_job(const Options& options);

/// Meets the other ranks in the store, agrees with them on version and settings, connects the
/// backend, makes the engine and starts it. All ranks succeed, or all throw Error that names who is
/// missing, dead or different, or which limit of a rank's own was reached.
std::shared_ptr<Engine> make_engine(const Options& options, const Membership& membership);

}  // namespace tutti
