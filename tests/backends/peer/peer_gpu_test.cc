// The peer backend on a GPU that all ranks share: ranks are threads, or processes, which this one
// forks before it has touched CUDA. Where there is none every test is skipped and says why.

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/backends/conformance/gpu_cases.h"

namespace tutti::test {
namespace {

class PeerGpu : public testing::Test {
 protected:
  void SetUp() override {
    const auto reason = why_no_gpu();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

void share_the_gpu(Options& options) {
  options.backend = "peer";
  ::setenv("CUDA_VISIBLE_DEVICES", "0", 0);
}

void check_peer(Communicator& comm) {
  Gpu gpu;
  EXPECT_EQ(comm.backend(), "peer");
  check_steps(comm, gpu, false);
  check_kinds(comm, gpu);
  comm.barrier("end").wait();
}

// Large enough that every rank has a share, and in a bucket of many pieces.
void check_large(Communicator& comm) {
  Gpu gpu;
  const auto size = static_cast<float>(comm.size());
  for (int round = 0; round < 20; ++round) {
    std::vector<Tensor> tensors;
    std::vector<Work> works;
    for (int i = 0; i < 5; ++i)
      tensors.push_back(gpu.make(
          std::vector<float>(200'000 + static_cast<size_t>(i), static_cast<float>(round))));
    for (size_t i = 0; i < tensors.size(); ++i)
      works.push_back(
          comm.allreduce("large" + std::to_string(i), gpu.view(tensors[i]), ReduceOp::sum));
    for (auto& work : works) work.wait();
    for (const auto& tensor : tensors)
      for (const float value : gpu.read<float>(tensor))
        ASSERT_EQ(value, static_cast<float>(round) * size);
  }
}

// Processes first: what threads do loads CUDA into this process.
TEST_F(PeerGpu, ProcessesShareAGpu) {
  for (const int size : {1, 2, 4}) run_processes(size, check_peer, share_the_gpu, 60);
  run_processes(2, check_large, share_the_gpu, 60);
}

TEST_F(PeerGpu, ThreadsShareAGpu) {
  for (const int size : {1, 2, 4}) run_threads(size, check_peer, share_the_gpu, 60);
  run_threads(4, check_large, share_the_gpu, 60);
}

}  // namespace
}  // namespace tutti::test
