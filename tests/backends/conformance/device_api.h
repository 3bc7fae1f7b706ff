#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/api/case.h"

// The API suite's cases on memory of the tests' device.

namespace tutti::test {

inline bool has_levels(const std::string& backend) { return backend.find('+') != backend.npos; }

/// All in one job: every case leaves the communicator fit for the next.
inline constexpr auto kEveryCase = [](auto& communicator) {
  OnDeviceCommunicator there(communicator);
  for (const auto& one : cases()) {
    // What two levels take through host memory is refused by its Work only.
    if (has_levels(there.backend()) && one.suite != "Allreduce" && one.name == "DuplicateName")
      continue;
    SCOPED_TRACE(one.suite + "." + one.name);
    one.run(there);
    if (testing::Test::HasFailure()) return;
  }
};

inline std::string name_of_backend(const testing::TestParamInfo<std::string>& info) {
  auto name = info.param;
  std::replace(name.begin(), name.end(), '+', '_');
  return name;
}

}  // namespace tutti::test
