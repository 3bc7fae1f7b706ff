// Checkpoints and sentinels for state on a GPU, with the simulated GPU.

#include <atomic>

#include "tests/fake_cuda/fake_cuda_fixture.h"
#include "tests/fake_cuda/state_check.h"
#include "tutti/core/persistent_allreduce.h"

namespace tutti {
namespace {

using DeviceState = test::FakeCudaTest;

TEST_F(DeviceState, GoesOnFromACheckpointToTheBit) { test::expect_to_go_on(test::kFake); }
TEST_F(DeviceState, ASentinelSeesAFlippedBit) { test::expect_a_sentinel_to_see(test::kFake); }

// Copies run in the order of the tensor's stream and are complete when they return.
TEST_F(DeviceState, CopiesKeepTheOrderOfTheStream) {
  for (const int64_t count : {int64_t{1}, int64_t{1000}, (int64_t{9} << 18) + 3}) {  // up to 9 MiB
    std::vector<float> mine(static_cast<size_t>(count)), back(mine.size());
    for (size_t i = 0; i < mine.size(); ++i) mine[i] = static_cast<float>(i % 8191) + 0.5F;
    const auto there = kernels_->make_tensor(Shape{count}, DataType::f32);
    for (int i = 0; i < 20; ++i) kernels_->fill_zero(there);  // the stream is late
    copy_from_host(there, reinterpret_cast<const std::byte*>(mine.data()));
    kernels_->add(there, there);
    copy_to_host(reinterpret_cast<std::byte*>(back.data()), there);
    for (auto& value : mine) value *= 2;
    EXPECT_EQ(back, mine);
  }
}

// All ranks get the error, also those whose tensors are in host memory, and nothing is saved.
TEST_F(DeviceState, ADeviceThatFailedCannotBeSaved) {
  for (const bool in_background : {false, true}) {
    const test::ScratchFolder scratch;
    test::run_threads(2, [&](Communicator& comm) {
      const Tensor host = test::noise_tensor(Shape{10}, 1);
      const Tensor tensor = comm.rank() == 1 ? kernels_->upload(host) : host;
      static_cast<void>(on_host(tensor));
      CheckpointFolder folder(comm, scratch.path());
      if (comm.rank() == 1) test::fake_cuda().fail_for_good();
      const std::vector<PlacedTensor> state = {
          {"w", tensor, {Shape{20}, Held::divided, comm.size(), comm.rank()}}};
      test::expect_error(ErrorCode::unavailable, "rank 1: ", [&] {
        if (in_background) {
          folder.save_in_background(1, state);
          folder.wait();
        } else {
          folder.save(1, state);
        }
      });
      comm.barrier_blocking();
      if (comm.rank() == 1) test::fake_cuda().fail_for_good(false);
      EXPECT_TRUE(folder.steps().empty());
    });
  }
}

// The load is incomplete only on the failed device; all ranks get the error.
TEST_F(DeviceState, ADeviceThatFailsInALoadIsToldToAll) {
  const test::ScratchFolder scratch;
  test::run_threads(2, [&](Communicator& comm) {
    const Tensor host = test::noise_tensor(Shape{10}, 1);
    const std::vector<PlacedTensor> state = {
        {"w", comm.rank() == 1 ? kernels_->upload(host) : host, {Shape{10}}}};
    CheckpointFolder folder(comm, scratch.path());
    folder.save(1, state);
    if (comm.rank() == 1) test::fake_cuda().fail_for_good();
    test::expect_error(ErrorCode::unavailable, "rank 1: ", [&] { folder.load(state); });
    comm.barrier_blocking();
    if (comm.rank() == 1) test::fake_cuda().fail_for_good(false);
  });
}

// Everything with memory, streams or kernels on the device is destroyed after the error.
TEST_F(DeviceState, NothingOfATrainingThrowsWhileItGoesAfterAStickyError) {
  uint64_t gate = 0;
  test::run_threads(1, [&](Communicator& comm) {
    const nn::Dataset data{Tensor(Shape{12, 2, 4, 4}, DataType::u8),
                           Tensor(Shape{12}, DataType::u8), 2};
    nn::Sequential model(1, 1, test::kFake);
    model.add("flatten", nn::flatten()).add("fc", nn::linear(32, 2));
    nn::Adam adam(model.parameters(), {.learning_rate = 0.1});
    auto optimizer = distributed(comm, adam);
    nn::DataLoader loader(data, {.batch = 4, .device = model.device(), .stream = model.stream()});
    PersistentAllreduce allreduce(comm, "norm", model.parameters()[0].gradient);
    const auto batch = loader.next();
    test::fake_cuda().wait_word(model.stream(), &gate,
                                1);  // no gradient is ready before the error
    const nn::CrossEntropy loss(model.forward(batch->images), batch->labels);
    model.backward(loss);
    allreduce.launch(model.stream());
    test::fake_cuda().fail_for_good();
    test::expect_error(ErrorCode::unavailable,
                       "\"gradient fc.weight\" waits for a device that has failed: an illegal "
                       "memory access was met",
                       [&] { optimizer.synchronize(); });
    test::expect_error(ErrorCode::unavailable, "an illegal memory access was met",
                       [&] { static_cast<void>(loss.value()); });
  });
  test::fake_cuda().fail_for_good(false);
  std::atomic_ref(gate).store(1);
}

}  // namespace
}  // namespace tutti
