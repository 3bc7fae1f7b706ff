#pragma once

#include <functional>

#include "tests/simulation/case.h"

namespace tutti::simulation {

struct Shrunk {
  Case smallest;
  int runs = 0;
};

/// A smaller case that still `fails`: without the faults, ranks, scripts, steps, operations and
/// actions that it does not take, and with lower numbers. `from` fails itself. At most `most_runs`
/// calls.
Shrunk shrink(const Case& from, const std::function<bool(const Case&)>& fails, int most_runs = 400);

/// The case without one rank: those above it move down, what is theirs alone goes.
Case without_rank(const Case& from, int rank);

}  // namespace tutti::simulation
