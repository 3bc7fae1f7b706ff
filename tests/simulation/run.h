#pragma once

#include <cstdint>
#include <string>

#include "tests/simulation/case.h"
#include "tests/simulation/record.h"

namespace tutti::simulation {

struct Outcome {
  Record record;
  uint64_t hash = 0;  // of the time, rank, input and outputs of each step; a case always has the
                      // same hash
  std::string trace;  // if requested: a line for each step
};

/// Runs one case from its start until nothing can happen any more.
Outcome run(const Case& from, bool with_trace = false);

}  // namespace tutti::simulation
