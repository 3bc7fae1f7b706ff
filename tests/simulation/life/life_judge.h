#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/simulation/life/life_case.h"
#include "tests/simulation/life/life_record.h"

namespace tutti::simulation {

struct LifeFinding {
  int promise = 0;  // L1 to L8; 0: the world itself
  std::string text;
};
/// How often each promise was looked at.
using LifeLooks = std::array<int64_t, 9>;

/// Finds which promises of create(), split() and shrink() a job did not keep:
///  L1 each call ends in time;
///  L2 an attempt ends well for all that live or for none, and all name the same members;
///  L3 of an attempt that failed for one rank all others hear soon;
///  L4 an error names a rank that is a cause, and never one that lives and does what it should;
///  L5 of two members that died, the first one is named;
///  L6 no member of a shrink has given up another one, and all that came in time are members;
///  L7 who lives comes to its end once the faults are over;
///  L8 few keys are left.
std::vector<LifeFinding> check_life(const LifeCase& from, const LifeRecord& record,
                                    LifeLooks* looks = nullptr);

}  // namespace tutti::simulation
