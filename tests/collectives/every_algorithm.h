#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "tutti/collectives/schedule.h"

namespace tutti {

inline void PrintTo(const Algorithm& algorithm, std::ostream* stream) {
  *stream << to_string(algorithm.kind) << " " << algorithm.name;
}

}  // namespace tutti

namespace tutti::test {

/// Returns all algorithms except those of send and recv, whose two ranks use different algorithms.
inline std::vector<Algorithm> collectives_of_all() {
  std::vector<Algorithm> result;
  for (const auto& algorithm : algorithms())
    if (algorithm.kind != CollectiveKind::send && algorithm.kind != CollectiveKind::recv)
      result.push_back(algorithm);
  return result;
}

inline std::string name_of(const testing::TestParamInfo<Algorithm>& info) {
  return fmt::format("{}_{}", to_string(info.param.kind), info.param.name);
}

}  // namespace tutti::test
