#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/api/case.h"

// The cases of the API suite on the memory of the fake device.

namespace tutti::test {

inline bool has_levels(const std::string& backend) { return backend.find('+') != backend.npos; }

/// Runs all cases in one job: every case leaves the communicator usable for the next one.
inline constexpr auto kEveryCase = [](auto& communicator) {
  OnDeviceCommunicator there(communicator);
  for (const auto& one : cases()) {
    // With two levels, operations that go through host memory fail only when their Work is waited
    // for.
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
