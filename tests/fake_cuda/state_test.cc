// Checkpoints and sentinels of what lives on a GPU, on the one that is none.

#include "tests/fake_cuda/fake_cuda_fixture.h"
#include "tests/fake_cuda/state_check.h"

namespace tutti {
namespace {

using DeviceState = test::FakeCudaTest;

TEST_F(DeviceState, GoesOnFromACheckpointToTheBit) { test::expect_to_go_on(test::kFake); }
TEST_F(DeviceState, ASentinelSeesAFlippedBit) { test::expect_a_sentinel_to_see(test::kFake); }

// The copies go behind what is on the tensor's stream, and are done when they return.
TEST_F(DeviceState, CopiesKeepTheOrderOfTheStream) {
  for (const int64_t count : {int64_t{1}, int64_t{1000}, (int64_t{9} << 18) + 3}) {  // of 9 MiB
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

// All ranks hear of it, also those whose tensors live on the host, and nothing is saved.
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

}  // namespace
}  // namespace tutti
