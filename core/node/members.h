#pragma once

#include <string>

#include "tutti/backends/backend.h"

namespace tutti {

/// Returns "rank 3 (host b, pid 4711)".
std::string describe_rank(const Context& context, int rank);
/// Returns a text about how the program can go on after the loss of one rank.
std::string how_to_go_on(const Context& context);
/// Returns whether that rank's process is on this host and this rank sees it under the same pid.
bool sees_process_of(const Context& context, int rank);

}  // namespace tutti
