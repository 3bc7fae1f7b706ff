// LeNet learns its digits on a GPU: alone, compared with the CPU's steps, and on ranks that share
// the GPU, as threads and as processes. Without a GPU every test is skipped with a reason.

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <tuple>

#include "tests/fake_cuda/state_check.h"
#include "tests/nn/digits_training.h"
#include "tests/support/gpu.h"

namespace tutti::test {
namespace {

class GpuTraining : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = why_no_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

constexpr DigitsMethod kLong{.epochs = 6};

void learn(Communicator& comm) {
  EXPECT_GE(train_digits(comm, kGpu, DataType::f32, kLong).right, 97);
}
Tune through(const std::string& backend) {
  return [backend](Options& options) {
    options.backend = backend;
    ::setenv("CUDA_VISIBLE_DEVICES", "0", 0);
  };
}

// Processes run first, because the tests with threads load CUDA into this process.
TEST_F(GpuTraining, OneRankOfNccl) { run_processes(1, learn, through("nccl"), 120); }
TEST_F(GpuTraining, TwoProcessesOfPeer) { run_processes(2, learn, through("peer"), 120); }
TEST_F(GpuTraining, TwoProcessesThroughTheHost) { run_processes(2, learn, through("shm"), 120); }

TEST_F(GpuTraining, FiftyStepsAreTheCpus) {
  // If the two largest values of a pool differ only in the last bit, CPU and GPU may send the
  // gradient to different inputs. The difference grows with the learning rate, and momentum keeps
  // it.
  DigitsMethod method{.steps = 0, .learning_rate = 0.001, .momentum = 0};
  const auto begin = train_thread_ranks({}, 1, DataType::f32, "memory", method);
  method.steps = 50;
  const auto cpu = train_thread_ranks({}, 1, DataType::f32, "memory", method);
  const auto gpu = train_thread_ranks(kGpu, 1, DataType::f32, "memory", method);
  EXPECT_LE(largest_difference(cpu, gpu), 1e-4f);
  EXPECT_GE(largest_difference(cpu, begin), 1e-3f);
}

TEST_F(GpuTraining, HasTheSameBitsInEveryRunAndThroughEveryBackend) {
  for (const auto dtype : {DataType::f32, DataType::bf16, DataType::f16}) {
    const auto first = train_thread_ranks(kGpu, 2, dtype, "peer", {.steps = 20});
    for (const auto* backend : {"peer", "memory"})
      EXPECT_EQ(first.parameters,
                train_thread_ranks(kGpu, 2, dtype, backend, {.steps = 20}).parameters)
          << to_string(dtype) << " " << backend;
  }
}

TEST_F(GpuTraining, GoesOnFromACheckpointToTheBit) { expect_to_go_on(kGpu); }
TEST_F(GpuTraining, ASentinelSeesAFlippedBit) { expect_a_sentinel_to_see(kGpu); }

class GpuThreads : public testing::WithParamInterface<std::tuple<int, DataType>>,
                   public GpuTraining {};

TEST_P(GpuThreads, To97Percent) {
  const auto [ranks, dtype] = GetParam();
  EXPECT_GE(train_thread_ranks(kGpu, ranks, dtype, "peer", kLong).right, 97);
}
INSTANTIATE_TEST_SUITE_P(Peer, GpuThreads,
                         testing::Combine(testing::Values(1, 2, 4),
                                          testing::Values(DataType::f32, DataType::bf16,
                                                          DataType::f16)),
                         [](const auto& info) {
                           return std::to_string(std::get<0>(info.param)) + "_" +
                                  std::string(to_string(std::get<1>(info.param)));
                         });

}  // namespace
}  // namespace tutti::test
