#pragma once

#include <string>

#include "tutti/backends/backend.h"

namespace tutti {

/// Returns "rank 3 (host b, pid 4711)".
std::string describe_rank(const Context& context, int rank);
/// Returns a text about what the program can do after one of its ranks is gone.
std::string how_to_go_on(const Context& context);
/// Returns whether that rank's process runs on this rank's host and has the same pid for this rank.
bool sees_process_of(const Context& context, int rank);

}  // namespace tutti
