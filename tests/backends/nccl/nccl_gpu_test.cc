// The nccl backend on a GPU, with the real libraries. Ranks are processes, which this program forks
// before it has touched CUDA. If something is missing, every test is skipped with a reason.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/backends/conformance/gpu_cases.h"
#include "tutti/backends/backend.h"

namespace tutti::test {
namespace {

class NcclGpu : public testing::Test {
 protected:
  void SetUp() override {
    const auto reason = why_no_gpu([] { find_backend("nccl").version(); });
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

void check_all(Communicator& comm) {
  Gpu gpu;
  EXPECT_EQ(comm.backend(), "nccl");
  check_steps(comm, gpu, false);
  check_kinds(comm, gpu);
  comm.barrier("end").wait();
}

TEST_F(NcclGpu, OneRank) {
  run_processes(1, check_all, [](Options& options) { options.backend = "nccl"; });
}

// NCCL treats ranks with different host ids as ranks of different hosts, and lets them share a GPU.
void share_gpu(Options& options) {
  options.backend = "nccl";
  ::setenv("CUDA_VISIBLE_DEVICES", "0", 0);
  ::setenv("NCCL_HOSTID", fmt::format("rank{}", options.rank).c_str(), 1);
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  ::setenv("NCCL_IB_DISABLE", "1", 1);
  ::setenv("NCCL_NVLS_ENABLE", "0", 1);
  ::setenv("NCCL_MAX_CTAS", "2", 1);
}

TEST_F(NcclGpu, TwoRanksOnOneGpuByHostIds) { run_processes(2, check_all, share_gpu, 60); }

TEST_F(NcclGpu, ACopyToOrdinaryMemoryWaitsBehindAnOperation) {
  run_processes(
      2,
      [](Communicator& comm) {
        Gpu gpu;
        check_steps(comm, gpu, true);
      },
      share_gpu, 60);
}

}  // namespace
}  // namespace tutti::test
