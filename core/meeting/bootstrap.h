#pragma once

#include <memory>

#include "tutti/core/engine/engine.h"
#include "tutti/core/meeting/attempt.h"

namespace tutti {

/// Opens the job's store according to the options. Enters this rank into the first attempt of the
/// job that has not ended. All ranks skip the same attempts: those that failed or became a
/// communicator. Throws Error(invalid_argument) if another process has entered as this rank.
Membership join_job(const Options& options);

/// Makes and starts the engine: meets the other ranks in the store, checks that all have the same
/// version and settings, and connects the backend. All ranks succeed, or all throw an Error. The
/// Error names the rank that is missing, dead or different, or the limit that a rank has reached.
std::shared_ptr<Engine> make_engine(const Options& options, const Membership& membership);

}  // namespace tutti
