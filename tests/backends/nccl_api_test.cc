// The API suite's cases over the nccl backend, on memory of the tests' device.

#include "tests/api/case.h"
#include "tests/backends/fake_nccl/judge.h"

namespace tutti::test {

namespace {

const bool judged = FakeNcclJudge::install();

std::vector<Case>& case_list() {
  static std::vector<Case> list;
  return list;
}

}  // namespace

const std::vector<Case>& cases() { return case_list(); }

bool register_case(Case one, const char*, int) {
  case_list().push_back(std::move(one));
  return true;
}

namespace {

class NcclApi : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, NcclApi, testing::Values(2, 3),
                         [](const auto& info) { return std::to_string(info.param); });

// All in one job: every case leaves the communicator fit for the next.
TEST_P(NcclApi, EveryCase) {
  run_threads(
      GetParam(),
      [](auto& communicator) {
        OnDeviceCommunicator there(communicator);
        for (const auto& one : cases()) {
          // It is about memory of another kind on one rank, and here all is of one kind.
          if (one.name == "DeviceError") continue;
          SCOPED_TRACE(one.suite + "." + one.name);
          one.run(there);
          if (testing::Test::HasFailure()) return;
        }
      },
      [](Options& options) {
        options.backend = "nccl";
        options.backend_library = TUTTI_FAKE_NCCL;
      },
      100);
  EXPECT_GE(cases().size(), 70u);
  // Most of it went through NCCL.
  EXPECT_GT(FakeNccl::completed(), 1000);
}

}  // namespace
}  // namespace tutti::test
