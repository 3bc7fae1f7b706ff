#pragma once

#include <functional>

#include "tests/simulation/case.h"

namespace tutti::simulation {

struct Shrunk {
  Case smallest;
  int runs = 0;
};

/// Returns a smaller case that still `fails`. Unnecessary faults, ranks, scripts, steps, operations
/// and actions are left out, and numbers are lowered. `from` must fail. Runs at most `most_runs`
/// cases.
Shrunk shrink(const Case& from, const std::function<bool(const Case&)>& fails, int most_runs = 400);

/// Returns the case without one rank. The ranks above it move down, and operations that need it are
/// left out.
Case without_rank(const Case& from, int rank);

}  // namespace tutti::simulation
