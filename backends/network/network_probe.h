#pragma once

#include <memory>

#include "tutti/backends/backend.h"

namespace tutti {

/// Returns the thresholds of a communicator over several hosts. Its transport must be newly
/// connected and carry nothing yet. All ranks call this and get the same result, so that they
/// choose the same algorithms.
///
/// Rank 0 takes the figures of the network from Context::probe's file or measures them: with the
/// first rank of the second host, then with the next rank of its own host, each within
/// kProbeSeconds. It sends them to the others through the store. If they cannot be measured, the
/// chooser's table stays as it is. A file that cannot be read or saved is only a warning. With one
/// host, a determinism other than fastest, or Probe::off, nothing is measured.
Thresholds find_thresholds(const Context& context, Transport& transport, TwoLevels two_levels);

inline constexpr double kProbeSeconds = 0.3;

}  // namespace tutti
