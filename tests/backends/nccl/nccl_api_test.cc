// The cases of the API suite over nccl, with ranks that are threads.

#include "tests/backends/nccl/nccl_api.h"

#include "tests/backends/fake_nccl/judge.h"
#include "tests/support/ranks.h"

namespace tutti::test {
namespace {

const bool judged = FakeNcclJudge::install();

class WholeSuiteOver : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, WholeSuiteOver, testing::Values("nccl", "nccl+tcp"),
                         name_of_backend);

TEST_P(WholeSuiteOver, Threads) {
  EXPECT_GE(cases().size(), 70u);
  const auto sizes = has_levels(GetParam()) ? std::vector{4} : std::vector{2, 3};
  for (const int size : sizes)
    run_threads(
        size, kEveryCase, [&](Options& options) { choose_nccl(options, GetParam()); }, 100);
  // Most operations ran through NCCL. With two levels, the allreduces did.
  EXPECT_GT(FakeNccl::completed(), 1000);
}

}  // namespace
}  // namespace tutti::test
