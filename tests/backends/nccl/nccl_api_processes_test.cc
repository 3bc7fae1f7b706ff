// The cases of the API suite over nccl. The ranks are processes, each with its own fake device and
// fake NCCL.

#include <gmock/gmock.h>

#include "tests/backends/fake_nccl/rank_process.h"
#include "tests/backends/nccl/nccl_api.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch_folder.h"

namespace tutti::test {
namespace {

class WholeSuiteOver : public testing::TestWithParam<std::string> {
 protected:
  Tune tune() const {
    return [this](Options& options) {
      static const FakeNcclRank fakes(folder_.path());  // in the rank's process, which this is
      choose_nccl(options, GetParam());
    };
  }

 private:
  const ScratchFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(Backends, WholeSuiteOver, testing::Values("nccl", "nccl+tcp"),
                         name_of_backend);

constexpr auto kEveryCaseJudged = [](auto& communicator) {
  kEveryCase(communicator);
  communicator.barrier("the last case").wait();
  EXPECT_THAT(FakeNccl::complaints(), testing::IsEmpty());
  EXPECT_GT(FakeNccl::completed(), 100);
};

TEST_P(WholeSuiteOver, Processes) {
  run_processes(has_levels(GetParam()) ? 4 : 3, kEveryCaseJudged, tune(), 100);
}
TEST_P(WholeSuiteOver, TwoHosts) { run_hosts({0, 0, 1, 1}, kEveryCaseJudged, tune(), 100); }

}  // namespace
}  // namespace tutti::test
