// The cases of the API suite over peer. The ranks are processes that map each other's memory.

#include <gmock/gmock.h>

#include "tests/backends/conformance/device_api.h"
#include "tests/support/ranks.h"
#include "tests/tensor/fake_device.h"

namespace tutti::test {
namespace {

class WholeSuiteOver : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, WholeSuiteOver, testing::Values("peer", "peer+tcp", "peer+ucx"),
                         name_of_backend);

TEST_P(WholeSuiteOver, Processes) {
  if (GetParam() == "peer+ucx" && !TUTTI_HAS_UCX) GTEST_SKIP() << "backend ucx is not built here";
  run_processes(
      has_levels(GetParam()) ? 4 : 3, kEveryCase,
      [](Options& options) {
        use_fake_device();  // this code runs in the process of the rank
        options.backend = GetParam();
        if (has_levels(GetParam())) options.host = options.rank < 2 ? "first" : "second";
      },
      250);
}

}  // namespace
}  // namespace tutti::test
