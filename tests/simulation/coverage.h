#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "tests/simulation/case.h"
#include "tests/simulation/record.h"

namespace tutti::simulation {

/// Counts how many cases had what, and to which errors and phases they came. It has plain numbers
/// only, so that it may lie in memory that processes share.
struct Coverage {
  uint64_t cases = 0;
  std::array<uint64_t, kFaultKinds> faults{};
  std::array<uint64_t, kActionKinds> actions{};
  std::array<uint64_t, kCollectiveKindCount> kinds{};
  std::array<uint64_t, 17> operations_by_error{};  // 0: that ended well
  std::array<uint64_t, 49> phase_edges{};          // from * 7 + to: cases in which a rank took it
  std::array<uint64_t, 13> messages{};             // cases in which a rank sent one

  std::array<uint64_t, 18> looks{};  // what each invariant has looked at
  void add(const Case& from, const Record& record);
  void add(const Coverage& other);
  std::string to_text() const;
};

}  // namespace tutti::simulation
