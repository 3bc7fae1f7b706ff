#pragma once

#include <vector>

namespace tutti {

/// Returns the cores that this process may run on, ascending; empty if the system does not report
/// them.
std::vector<int> usable_cores();

}  // namespace tutti
