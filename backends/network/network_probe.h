#pragma once

#include <memory>

#include "tutti/backends/backend.h"

namespace tutti {

/// Returns the thresholds of a communicator over several hosts. The transport must be newly
/// connected and must not have carried messages yet. All ranks call this and get the same result,
/// so that they choose the same algorithms.
///
/// Rank 0 reads the figures of the network from the file of Context::probe or measures them. It
/// measures with the first rank of the second host and then with the next rank of its own host,
/// each within kProbeSeconds. It publishes the figures in the store.
///
/// If the network cannot be measured, the chooser keeps its built-in table. If the file cannot be
/// read or written, that is only a warning. Nothing is measured with a single host, with a
/// determinism other than fastest, or with Probe::Mode::off.
Thresholds find_thresholds(const Context& context, Transport& transport, TwoLevels two_levels);

inline constexpr double kProbeSeconds = 0.3;

}  // namespace tutti
