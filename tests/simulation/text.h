#pragma once

#include <string>
#include <string_view>

#include "tests/simulation/case.h"

namespace tutti::simulation {

/// A case is a few short lines: the world, one line for each script, and one for each fault.
/// Defaults are left out. Ranks with equal scripts share a line:
///
///   world size=3 latency=50
///   ranks 0,1: submit t0 allreduce 8 c=3, t1 allgather 2x3; wait
///   ranks 2: submit t0 allreduce 8 c=3; close error=bad
///   fault kill rank=2 at=1200
std::string to_text(const Case& from);

/// Parses the output of to_text() or a handwritten case. Skips empty lines and lines that begin
/// with #. Throws std::invalid_argument that names the line. Names have no spaces, commas or
/// semicolons.
Case parse(std::string_view text);

}  // namespace tutti::simulation
