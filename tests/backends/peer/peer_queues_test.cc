// Ranks are threads that share a device whose streams all use one hardware queue. If a stream
// waited for data that no one has queued yet, it would block the very work that brings the data.

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/support/ranks.h"
#include "tests/tensor/fake_device.h"

namespace tutti::test {
namespace {

constexpr Device kFake{DeviceKind::fake, 0};

class OneQueue : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, OneQueue, testing::Values("peer", "memory", "shm"),
                         [](const auto& info) { return info.param; });

// In each step, the rank's stream fills several tensors, all ranks reduce them, and only the stream
// waits for the results.
void train(Communicator& comm) {
  auto& device = device_runtime(DeviceKind::fake);
  const auto stream = device.create_stream(kFake);
  constexpr int64_t kCount = 1000;
  constexpr int kSteps = 25, kTensors = 6;
  const std::vector<float> source(kCount, static_cast<float>(comm.rank() + 1));
  std::vector<std::vector<float>> tensors(kTensors, std::vector<float>(kCount));
  const float sum = static_cast<float>(comm.size() * (comm.size() + 1)) / 2;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<Work> works;
    for (int i = 0; i < kTensors; ++i) {
      auto& tensor = tensors[static_cast<size_t>(i)];
      device.copy(tensor.data(), source.data(), kCount * sizeof(float), stream);
      const TensorView view(tensor.data(), Shape{kCount}, DataType::f32, kFake, stream);
      works.push_back(comm.allreduce("gradient" + std::to_string(i), view, ReduceOp::sum));
    }
    for (auto& work : works) work.wait_on(stream);
    if (step % 5 == 4) {
      device.synchronize(stream);
      for (const auto& tensor : tensors) ASSERT_EQ(tensor, std::vector<float>(kCount, sum));
    }
    for (auto& work : works) work.wait();
  }
  device.destroy_stream(stream);
}

TEST_P(OneQueue, HoldsNoRank) {
  static FakeDevice device({.seed = std::random_device{}(), .queues = 1});
  run_threads(4, train, over(GetParam()), 60);
}

}  // namespace
}  // namespace tutti::test
