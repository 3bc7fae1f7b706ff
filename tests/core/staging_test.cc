// Operations on the memory of a device whose streams run late.

#include "tutti/core/staging.h"

#include <gtest/gtest.h>

#include "tests/support/ranks.h"
#include "tests/tensor/fake_device.h"

namespace tutti {
namespace {

using test::run_threads;

const Device kFake{DeviceKind::fake, 0};

// Fills a tensor in stream order, so that whoever does not wait for the stream sees garbage.
void fill(FakeDevice& device, const Tensor& tensor, StreamRef stream, float value) {
  device.host_function(stream, [tensor, value] {
    for (float& element : tensor.span<float>()) element = value;
  });
}

TensorView on_stream(const Tensor& tensor, StreamRef stream) {
  return {tensor.data(), tensor.shape(), tensor.dtype(), kFake, stream};
}

TEST(Staging, TheStreamWaitsAndTheHostDoesNot) {
  FakeDevice device;
  run_threads(2, [&](Communicator& comm) {
    const auto stream = device.create_stream(kFake);
    const Tensor gradient(Shape{1000}, DataType::f32, kFake);
    for (int step = 0; step < 10; ++step) {
      fill(device, gradient, stream, static_cast<float>(comm.rank() + step));
      comm.barrier_blocking();  // the ranks share the device and so its count
      const auto waits = device.synchronize_count();
      auto work = comm.allreduce("gradient", on_stream(gradient, stream));
      work.wait_on(stream);
      EXPECT_EQ(device.synchronize_count(), waits);
      comm.barrier_blocking();
      // What follows on the stream sees the average.
      std::vector<float> seen(1000);
      device.copy(seen.data(), gradient.data(), seen.size() * sizeof(float), stream);
      device.synchronize(stream);
      for (const float value : seen) ASSERT_EQ(value, static_cast<float>(step) + 0.5f);
      work.wait();
    }
    device.destroy_stream(stream);
  });
}

TEST(Staging, OutputsLiveOnTheDevice) {
  FakeDevice device;
  run_threads(2, [&](Communicator& comm) {
    const auto stream = device.create_stream(kFake);
    const Tensor mine(Shape{comm.rank() + 1}, DataType::f32, kFake);
    fill(device, mine, stream, static_cast<float>(comm.rank()));
    const auto all = comm.allgather("rows", on_stream(mine, stream)).output();
    EXPECT_EQ(all.device(), kFake);
    ASSERT_EQ(all.count(), 3);
    EXPECT_EQ(all.as<float>()[0], 0.0f);
    EXPECT_EQ(all.as<float>()[2], 1.0f);
    device.destroy_stream(stream);
  });
}

TEST(Staging, MemoryOfTwoKindsIsAMismatch) {
  FakeDevice device;
  run_threads(2, [&](Communicator& comm) {
    const auto stream = device.create_stream(kFake);
    const Tensor there(Shape{4}, DataType::f32, kFake);
    fill(device, there, stream, 1);
    std::vector<float> here(4, 1);
    auto work = comm.rank() == 0 ? comm.allreduce("x", on_stream(there, stream))
                                 : comm.allreduce("x", here);
    try {
      work.wait();
      ADD_FAILURE() << "no error on rank " << comm.rank();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("rank 0 sent memory on fake:0"), std::string::npos)
          << error.what();
    }
    // The stream is not held by the failed operation.
    if (comm.rank() == 0) {
      work.wait_on(stream);
      device.synchronize(stream);
    }
    comm.allreduce("x", here, ReduceOp::sum).wait();
    EXPECT_EQ(here[0], 2.0f);
    device.destroy_stream(stream);
  });
}

TEST(Staging, AGroupLivesOnOneDevice) {
  FakeDevice device;
  run_threads(1, [&](Communicator& comm) {
    const Tensor there(Shape{4}, DataType::f32, kFake);
    std::vector<float> here(4, 1);
    const NamedTensor tensors[] = {{"a", here}, {"b", there}};
    EXPECT_THROW(comm.grouped_allreduce("g", tensors), Error);
  });
}

}  // namespace
}  // namespace tutti
