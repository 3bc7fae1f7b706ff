// Many ranks on few cores must start in seconds. Their requests to the store and to each other must
// not grow with the square of their number.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "tests/tools/run_program.h"

namespace tutti::test {
namespace {

constexpr int kRanks = 64;
// Ten times the time measured on 2 busy cores (1.9 s over shm, 2.0 s over tcp).
constexpr double kMostSeconds = 20;

class Start : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Over, Start, testing::Values("shm", "tcp"),
                         [](const auto& info) { return info.param; });

TEST_P(Start, OfManyRanksTakesSeconds) {
  Program program({TUTTI_RUN, "-np", std::to_string(kRanks), START_RANK},
                  {fmt::format("TUTTI_BACKEND={}", GetParam())});
  EXPECT_EQ(program.finish(2 * kMostSeconds), 0) << program.errors();
  EXPECT_LT(program.seconds(), kMostSeconds);
  RecordProperty("seconds", fmt::format("{:.2f}", program.seconds()));
  std::printf("%d ranks over %s: %.2f s\n", kRanks, GetParam(), program.seconds());
}

}  // namespace
}  // namespace tutti::test
