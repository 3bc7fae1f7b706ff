#pragma once

#include <string>

#include "tutti/backends/backend.h"

namespace tutti {

/// "rank 3 (host b, pid 4711)"
std::string describe_rank(const Context& context, int rank);
/// Tells the program what it can do when one of its ranks is gone.
std::string how_to_go_on(const Context& context);
/// Whether that rank's process runs on this rank's host and has the same number for this rank.
bool sees_process_of(const Context& context, int rank);

}  // namespace tutti
