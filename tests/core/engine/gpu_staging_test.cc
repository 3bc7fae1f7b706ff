// Operations on GPU memory over a backend that knows only host memory. The ranks are threads of
// this process. staging_test.cc has the tests on the fake device, gpu_processes_test.cc those whose
// ranks are processes. Without a GPU the tests are skipped with a reason.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>

#include "tests/support/gpu.h"
#include "tests/support/ranks.h"
#include "tutti/base/error.h"

namespace tutti {
namespace {

using test::kGpu;
using test::run_threads;

// Chooses the memory backend: on ranks that share a GPU, `auto` would leave the tensors on it.
void through_the_host(Options& options) { options.backend = "memory"; }

class GpuStaging : public testing::Test {
 protected:
  void SetUp() override {
    try {
      runtime_ = &device_runtime(DeviceKind::cuda);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unavailable) throw;
      GTEST_SKIP() << error.what();
    }
  }

  TensorView on_stream(const Tensor& tensor, StreamRef stream) {
    return {tensor.data(), tensor.shape(), tensor.dtype(), kGpu, stream};
  }
  // Both copies use pinned memory. A copy to or from other memory that waits in a stream would keep
  // the other ranks of the process from pinning memory that they need first (docs/gpu.md).
  void send(const Tensor& tensor, const std::vector<float>& values, StreamRef stream) {
    auto* pinned = runtime_->allocate_host(values.size() * sizeof(float));
    std::memcpy(pinned, values.data(), values.size() * sizeof(float));
    runtime_->copy(tensor.data(), pinned, values.size() * sizeof(float), stream);
    runtime_->host_function(stream, [this, pinned] { runtime_->free_host(pinned); });
  }
  std::vector<float> fetch(const Tensor& tensor, StreamRef stream) {
    std::vector<float> values(static_cast<size_t>(tensor.count()));
    auto* pinned = runtime_->allocate_host(values.size() * sizeof(float));
    runtime_->copy(pinned, tensor.data(), values.size() * sizeof(float), stream);
    runtime_->synchronize(stream);
    std::memcpy(values.data(), pinned, values.size() * sizeof(float));
    runtime_->free_host(pinned);
    return values;
  }

  DeviceRuntime* runtime_ = nullptr;
};

TEST_F(GpuStaging, StepsInPiecesEqualThoseOfTheHost) {
  run_threads(
      2,
      [&](Communicator& comm) {
        const auto stream = runtime_->create_stream(kGpu);
        for (const int64_t count : {1, 1000, 1'000'003}) {
          const Tensor gradient(Shape{count}, DataType::f32, kGpu);
          std::vector<float> here(static_cast<size_t>(count));
          for (int step = 0; step < 10; ++step) {
            for (size_t i = 0; i < here.size(); ++i)
              here[i] = 1.0f / static_cast<float>(i + 1) + static_cast<float>(comm.rank() + step);
            send(gradient, here, stream);
            auto work = comm.allreduce("g" + std::to_string(count), on_stream(gradient, stream));
            work.wait_on(stream);
            const auto seen = fetch(gradient, stream);
            comm.allreduce("h" + std::to_string(count), here).wait();
            ASSERT_TRUE(seen == here) << count << " elements in step " << step;
            work.wait();
          }
        }
        runtime_->destroy_stream(stream);
      },
      [](Options& options) {
        through_the_host(options);
        options.partition_bytes = 256 << 10;
        options.determinism = Determinism::rank_order;
      });
}

TEST_F(GpuStaging, OutputsLiveOnTheDevice) {
  run_threads(
      2,
      [&](Communicator& comm) {
        const auto stream = runtime_->create_stream(kGpu);
        const Tensor mine(Shape{comm.rank() + 1}, DataType::f32, kGpu);
        send(mine, std::vector<float>(static_cast<size_t>(comm.rank() + 1), 1.5f), stream);
        const auto all = comm.allgather("rows", on_stream(mine, stream)).output();
        EXPECT_EQ(all.device(), kGpu);
        EXPECT_THAT(fetch(all, stream), testing::ElementsAre(1.5f, 1.5f, 1.5f));
        runtime_->destroy_stream(stream);
      },
      through_the_host);
}

}  // namespace
}  // namespace tutti
