#pragma once

#include <string>
#include <string_view>

#include "tests/simulation/case.h"

namespace tutti::simulation {

/// A few short lines: the world, one line for each script, one for each fault. What has its default
/// is left out, and ranks with equal scripts share a line:
///
///   world size=3 latency=50
///   ranks 0,1: submit t0 allreduce 8 c=3, t1 allgather 2x3; wait
///   ranks 2: submit t0 allreduce 8 c=3; close error=bad
///   fault kill rank=2 at=1200
std::string to_text(const Case& from);

/// Reads what to_text() or a person wrote. Empty lines and lines that begin with # are left out.
/// Throws std::invalid_argument that names the line. Names have no spaces, commas, semicolons.
Case parse(std::string_view text);

}  // namespace tutti::simulation
