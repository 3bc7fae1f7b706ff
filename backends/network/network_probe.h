#pragma once

#include <memory>

#include "tutti/backends/backend.h"

namespace tutti {

/// The thresholds of a communicator over several hosts whose transport is just connected and
/// carries nothing yet. All ranks call this and get the same, so that they choose alike: rank 0
/// takes the figures of the network from Context::probe's file, or has them measured (rank 0 with
/// the first rank of the second host, then with the next rank of its own host, each within
/// kProbeSeconds), and tells them through the store. What cannot be measured leaves the chooser's
/// table as it is, and what cannot be read or saved is a warning, never a failure. With one host,
/// another determinism than fastest, or Probe::off, nothing is asked.
Thresholds find_thresholds(const Context& context, Transport& transport, TwoLevels two_levels);

inline constexpr double kProbeSeconds = 0.3;

}  // namespace tutti
