#pragma once

#include <vector>

namespace tutti {

/// The cores that this process may run on, ascending; empty if the system does not tell.
std::vector<int> usable_cores();

}  // namespace tutti
