// The cases of the API suite over nccl. The ranks are processes, each with its own fake device and
// fake NCCL.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>

#include "tests/backends/fake_nccl/rank_process.h"
#include "tests/backends/nccl/nccl_api.h"
#include "tests/support/ranks.h"

namespace tutti::test {
namespace {

class WholeSuiteOver : public testing::TestWithParam<std::string> {
 protected:
  WholeSuiteOver() { std::filesystem::create_directory(folder_); }
  ~WholeSuiteOver() override { std::filesystem::remove_all(folder_); }

  Tune tune() const {
    return [this](Options& options) {
      static const FakeNcclRank fakes(folder_);  // this code runs in the process of the rank
      choose_nccl(options, GetParam());
    };
  }

 private:
  const std::string folder_ = fmt::format("{}nccl_api_{}", testing::TempDir(), ::getpid());
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
