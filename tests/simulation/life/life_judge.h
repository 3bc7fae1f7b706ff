#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/simulation/life/life_case.h"
#include "tests/simulation/life/life_record.h"

namespace tutti::simulation {

struct LifeFinding {
  int promise = 0;  // L1 to L8; 0: an error of the world itself
  std::string text;
};
/// How often each promise was checked.
using LifeLooks = std::array<int64_t, 9>;

/// Finds the broken promises of create(), split() and shrink() in a job:
///  L1 each call ends in time;
///  L2 an attempt ends well for all living ranks or for none, and all name the same members;
///  L3 if an attempt fails on one rank, all others learn it soon;
///  L4 an error names a rank that is a cause, and never one that lives and works correctly;
///  L5 of two members that died, the first one is named;
///  L6 no member of a shrink has given up another one, and all that came in time are members;
///  L7 a living rank completes its program once the faults are over;
///  L8 few keys are left.
std::vector<LifeFinding> check_life(const LifeCase& from, const LifeRecord& record,
                                    LifeLooks* looks = nullptr);

}  // namespace tutti::simulation
