#pragma once

#include "tutti/core/launch/launch.h"
#include "tutti/core/settings/options.h"

namespace tutti {

/// Reads every TUTTI_ variable of `environment` into its field. Throws Error(invalid_argument) for
/// garbage and for a TUTTI_ variable that nobody knows.
void read_settings(const Environment& environment, Options& options);

}  // namespace tutti
