// Operations on GPU memory over a backend that knows only host memory. The ranks are processes that
// share one GPU. Without a GPU the tests are skipped with a reason.

#include <gtest/gtest.h>

#include <atomic>

#include "tests/support/gpu.h"
#include "tests/support/ranks.h"

namespace tutti {
namespace {

using test::Gpu;
using test::run_processes;
using test::why_no_gpu;

class GpuProcesses : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = why_no_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

std::vector<float> numbers(int64_t count, int start) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(start + int(i % 97));
  return values;
}

// Chooses the shared-memory backend: on ranks that share a GPU, `auto` would leave the tensors on
// it.
void in_pieces(Options& options) {
  options.backend = "shm";
  options.partition_bytes = 256 << 10;
}

// A copy to memory that is not pinned waits for the operation. Until it is done, CUDA runs no host
// function and pins no memory in this process. So no thread of the library may need either of them.
TEST_F(GpuProcesses, ACopyToOrdinaryMemoryWaitsBehindAnOperation) {
  run_processes(
      2,
      [](Communicator& comm) {
        Gpu gpu;
        for (const int64_t count : {1, 1000, 1'000'003})
          for (int step = 0; step < 12; ++step) {
            const auto gradient = gpu.make(numbers(count, comm.rank() + step));
            auto work = comm.allreduce("g" + std::to_string(count), gpu.view(gradient),
                                       {.op = ReduceOp::sum});
            work.wait_on(gpu.stream());
            const auto seen = gpu.read_at_once<float>(gradient);
            const auto a = numbers(count, step), b = numbers(count, step + 1);
            for (size_t i = 0; i < seen.size(); ++i) ASSERT_EQ(seen[i], a[i] + b[i]) << i;
            work.wait();
          }
      },
      in_pieces);
}

// The sizes change in each step, so that pinned memory is allocated and freed while the streams are
// held.
TEST_F(GpuProcesses, SizesChangeWhileAStreamIsHeld) {
  run_processes(
      2,
      [](Communicator& comm) {
        Gpu gpu;
        int64_t count = 1 << 20;
        for (int step = 0; step < 24; ++step) {
          count = step % 2 == 0 ? 1 + count / 3 : count * 4 - 7;
          const auto gradient = gpu.make(numbers(count, comm.rank()));
          const auto more = gpu.make(numbers(17 * (step + 1), comm.rank()));
          auto first = comm.allreduce("first", gpu.view(gradient), {.op = ReduceOp::sum});
          first.wait_on(gpu.stream());
          // The second operation starts after the first has come back, since both belong to one
          // stream.
          auto second = comm.allreduce("second", gpu.view(more), {.op = ReduceOp::sum});
          second.wait_on(gpu.stream());
          const auto seen = gpu.read_at_once<float>(gradient);
          for (size_t i = 0; i < seen.size(); i += 1013)
            ASSERT_EQ(seen[i], 1 + 2 * static_cast<float>(i % 97));
          EXPECT_EQ(gpu.read_at_once<float>(more)[1], 3.0f);
          first.wait();
          second.wait();
        }
      },
      in_pieces);
}

// The library allocates the output on the GPU while the caller is blocked in a copy.
TEST_F(GpuProcesses, OutputsAreMadeWhileTheCallerCopies) {
  run_processes(
      2,
      [](Communicator& comm) {
        Gpu gpu;
        for (int step = 0; step < 12; ++step) {
          const auto sum = gpu.make(numbers(4096, comm.rank()));
          const auto mine = gpu.make(numbers(100 * (step + 1) + comm.rank(), comm.rank()));
          auto rows = comm.allgather("rows", gpu.view(mine));
          auto work = comm.allreduce("sum", gpu.view(sum), {.op = ReduceOp::sum});
          work.wait_on(gpu.stream());
          EXPECT_EQ(gpu.read_at_once<float>(sum)[96], 96 + 97.0f);
          const auto all = gpu.read_at_once<float>(rows.output());
          ASSERT_EQ(all.size(), static_cast<size_t>(200 * (step + 1) + 1));
          EXPECT_EQ(all[0], 0.0f);
          EXPECT_EQ(all.back(), 1 + static_cast<float>((100 * (step + 1)) % 97));
          work.wait();
        }
      },
      in_pieces);
}

// The host would wait if the ranks were threads that share the GPU.
TEST_F(GpuProcesses, TheHostDoesNotWait) {
  run_processes(
      2,
      [](Communicator& comm) {
        Gpu gpu;
        auto& runtime = device_runtime(DeviceKind::cuda);
        auto* gate = runtime.take_word();
        const auto gradient = gpu.make(numbers(1 << 20, comm.rank()));
        comm.allreduce("gradient", gpu.view(gradient)).wait();  // allocates pinned memory
        runtime.wait_word(gpu.stream(), gate, 1);  // holds the stream: nothing behind it can run
        auto work = comm.allreduce("gradient", gpu.view(gradient));
        work.wait_on(gpu.stream());
        EXPECT_FALSE(work.done());
        std::atomic_ref(*gate).store(1, std::memory_order_release);
        work.wait();
        runtime.synchronize(gpu.stream());
        runtime.give_back_word(gate);
      },
      in_pieces);
}

}  // namespace
}  // namespace tutti
