// The cases of the API suite over peer, with ranks that are threads.

#include <gmock/gmock.h>

#include "tests/backends/conformance/device_api.h"
#include "tests/support/ranks.h"
#include "tests/tensor/fake_device.h"

namespace tutti::test {
namespace {

class WholeSuiteOver : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, WholeSuiteOver, testing::Values("peer", "peer+tcp"),
                         name_of_backend);

TEST_P(WholeSuiteOver, Threads) {
  use_fake_device();
  EXPECT_GE(cases().size(), 70u);
  const auto sizes = has_levels(GetParam()) ? std::vector{4} : std::vector{2, 3};
  for (const int size : sizes)
    run_threads(
        size, kEveryCase,
        [&](Options& options) {
          options.backend = GetParam();
          if (has_levels(GetParam())) options.host = options.rank < 2 ? "first" : "second";
        },
        250);
}

}  // namespace
}  // namespace tutti::test
