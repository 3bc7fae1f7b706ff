#pragma once

#include <cstdint>
#include <string>

#include "tests/simulation/case.h"
#include "tests/simulation/record.h"

namespace tutti::simulation {

struct Outcome {
  Record record;
  uint64_t hash = 0;  // of time, rank, input and outputs of each step; one case has one hash
  std::string trace;  // if it was asked for: a line for each step
};

/// Runs one case from its start until nothing can happen any more.
Outcome run(const Case& from, bool with_trace = false);

}  // namespace tutti::simulation
