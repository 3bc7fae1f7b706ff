// PersistentAllreduce on a GPU that ranks share as threads: in stream order and in graphs. Without
// a GPU every test is skipped with a reason.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <span>
#include <thread>
#include <vector>

#include "tests/support/expect_error.h"
#include "tests/support/gpu.h"
#include "tests/support/ranks.h"
#include "tutti/base/deadline.h"
#include "tutti/core/persistent_allreduce.h"

namespace tutti::test {
namespace {

void must(cudaError_t status) {
  if (status != cudaSuccess) throw Error(ErrorCode::unavailable, cudaGetErrorString(status));
}

class PersistentOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = why_no_gpu(); !reason.empty()) GTEST_SKIP() << reason;
    // A stream that waits for another stream's kernel must not be ahead of it in the same hardware
    // queue.
    ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    device_runtime(DeviceKind::cuda);
  }
};

void over_memory(Options& options) { options.backend = "memory"; }

std::vector<float> values_of(int rank, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(static_cast<int>(i % 13) + 10 * rank);
  return values;
}

TEST_F(PersistentOnGpu, SumsOfEverySize) {
  for (const int size : {1, 2, 4, 8})
    run_threads(
        size,
        [](Communicator& comm) {
          Gpu gpu;
          for (const int64_t count : {1, 1001, 8192, 8193, 100'003, 5'000'000}) {
            const auto mine = values_of(comm.rank(), count);
            const auto one = gpu.make(mine), other = gpu.make(mine);
            const std::vector<TensorView> both{gpu.view(one), gpu.view(other)};
            PersistentAllreduce alone(comm, "alone", both[0], {.op = ReduceOp::sum});
            PersistentAllreduce together(comm, "together", both, {.op = ReduceOp::max});
            comm.barrier("all are ready").wait();
            alone.launch(gpu.stream());
            together.launch(gpu.stream());
            const auto sums = gpu.read<float>(one), largest = gpu.read<float>(other);
            alone.check();
            together.check();
            comm.barrier("none waits").wait();
            int64_t wrong = 0;
            for (size_t i = 0; i < sums.size(); ++i) {
              float sum = 0;
              for (int rank = 0; rank < comm.size(); ++rank)
                sum += static_cast<float>(static_cast<int>(i % 13) + 10 * rank);
              wrong += sums[i] != sum || largest[i] != static_cast<float>(static_cast<int>(i % 13) +
                                                                          10 * (comm.size() - 1));
            }
            EXPECT_EQ(wrong, 0) << count << " of " << comm.size() << " ranks";
          }
        },
        over_memory);
}

// One graph has a step of gradient descent on |w - t|^2 / 2, whose target differs by rank:
// gradient, allreduce, step. After n steps from w = 0, w is t's mean * (1 - (1 - rate)^n).
TEST_F(PersistentOnGpu, AWholeStepReplaysAsOneGraph) {
  constexpr int kSteps = 10'000, kAhead = 100;
  constexpr double kRate = 0.001;
  for (const int64_t count : {1000, 200'000})
    run_threads(
        4,
        [&](Communicator& comm) {
          Gpu gpu;
          auto& runtime = device_runtime(DeviceKind::cuda);
          const auto stream = static_cast<cudaStream_t>(gpu.stream().native);
          const auto target = gpu.make(values_of(comm.rank(), count));
          const auto weights = gpu.make(std::vector<float>(static_cast<size_t>(count)));
          const auto gradient = gpu.make(std::vector<float>(static_cast<size_t>(count)));
          PersistentAllreduce allreduce(comm, "step", gpu.view(gradient));
          const auto part = [&](const Tensor& tensor) {
            return Piece{tensor.data(), DataType::f32, 0, count};
          };
          const auto step = [&] {
            // Computes gradient = w - t with the kernels that pack and reduce.
            const auto minus = part(target);
            runtime.pack({gradient.data(), DataType::f32, count, 0, 0, false}, {&minus, 1}, {-1, 1},
                         false, gpu.stream());
            const std::byte* sum[] = {gradient.data(), weights.data()};
            std::byte* into[] = {gradient.data()};
            runtime.reduce({sum, into, count, DataType::f32, ReduceOp::sum, {}}, gpu.stream());
            allreduce.launch(gpu.stream());
            const auto mean = part(gradient);
            runtime.pack({gradient.data(), DataType::f32, count, 0, 0, false}, {&mean, 1},
                         {-kRate, 1}, false, gpu.stream());
            const std::byte* moved[] = {weights.data(), gradient.data()};
            std::byte* result[] = {weights.data()};
            runtime.reduce({moved, result, count, DataType::f32, ReduceOp::sum, {}}, gpu.stream());
          };
          must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
          step();
          cudaGraph_t graph;
          must(cudaStreamEndCapture(stream, &graph));
          cudaGraphExec_t executable;
          must(cudaGraphInstantiate(&executable, graph, 0));
          must(cudaGraphDestroy(graph));
          must(cudaGraphUpload(executable, stream));
          must(cudaStreamSynchronize(stream));
          comm.barrier("all are ready").wait();
          for (int i = 0; i < kSteps; ++i) {
            must(cudaGraphLaunch(executable, stream));
            if (i % kAhead == kAhead - 1) must(cudaStreamSynchronize(stream));
          }
          const auto got = gpu.read<float>(weights);
          allreduce.check();
          must(cudaGraphExecDestroy(executable));
          const double part_of_way = 1 - std::pow(1 - kRate, kSteps);
          double largest = 0;
          for (size_t i = 0; i < got.size(); ++i) {
            const double mean = static_cast<int>(i % 13) + 10 * (comm.size() - 1) / 2.0;
            largest = std::max(largest, std::abs(got[i] - mean * part_of_way));
          }
          EXPECT_LT(largest, 0.05) << count;
          const auto all = comm.allgather_bytes("weights", std::as_bytes(std::span(got)));
          for (const auto& one : all) EXPECT_EQ(one, all[0]);
        },
        over_memory, 120);
}

TEST_F(PersistentOnGpu, ARankThatDoesNotComeIsNamed) {
  std::atomic<int> told{0};
  run_threads(
      3,
      [&](Communicator& comm) {
        Gpu gpu;
        const auto tensor = gpu.make(values_of(comm.rank(), 100'000));
        PersistentAllreduce allreduce(comm, "late", gpu.view(tensor));
        for (int round = 0; round < (comm.rank() == 1 ? 3 : 4); ++round)
          allreduce.launch(gpu.stream());
        device_runtime(DeviceKind::cuda).synchronize(gpu.stream());
        if (comm.rank() != 1)
          expect_error(ErrorCode::timeout, "in round 4 a kernel of rank",
                       [&] { allreduce.check(); });
        ++told;
        for (const auto until = Deadline::after(30); told < 3 && !until.passed();)
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
      },
      [](Options& options) {
        options.backend = "memory";
        options.operation_timeout = 5;
        options.stall_warning = 30;
      });
}

}  // namespace
}  // namespace tutti::test
