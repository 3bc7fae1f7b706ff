#pragma once

// The state of a training on a device: checkpoints restore it to the bit, and a sentinel detects
// flipped bits. Used for the simulated GPU and for a real one.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/nn/layer_check.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch_folder.h"
#include "tutti/adapters/checkpoint/checkpoint_folder.h"
#include "tutti/nn.h"
#include "tutti/tensor/tensor.h"

namespace tutti::test {

/// A model with running statistics and an optimizer with moments, which differ by the seed.
class DeviceTrainer {
 public:
  DeviceTrainer(Communicator& comm, Device device, uint64_t seed)
      : comm_(comm),
        model_(made(device, seed)),
        adam_(model_.parameters(), {.learning_rate = 0.01}),
        optimizer_(distributed(comm, adam_)) {}

  void train(int first_step, int steps) {
    const Tensor labels(Shape{6}, DataType::i64);
    for (int step = first_step; step < first_step + steps; ++step) {
      model_.zero_grad();
      const nn::CrossEntropy loss(
          model_.forward(noise_tensor(Shape{6, 3, 4, 4}, static_cast<uint64_t>(step))), labels);
      model_.backward(loss);
      optimizer_.step();
    }
  }
  /// Returns the bits of all learned values.
  std::vector<reference::Values> values() const {
    std::vector<reference::Values> all;
    for (const auto& parameter : model_.parameters())
      all.push_back(values_of(on_host(parameter.value)));
    for (const auto& state : buffers_and_moments())
      if (state.tensor.dtype() == DataType::f32) all.push_back(values_of(on_host(state.tensor)));
    return all;
  }
  std::vector<nn::Parameter> parameters() const { return model_.parameters(); }
  nn::TrainingState training() { return {comm_, model_, optimizer_}; }

 private:
  std::vector<nn::NamedState> buffers_and_moments() const {
    auto all = adam_.state();
    for (const auto& buffer : model_.buffers()) all.push_back(buffer);
    return all;
  }
  static nn::Sequential made(Device device, uint64_t seed) {
    nn::Sequential model(seed, 1, device);
    model.add("norm", nn::batch_norm(3))
        .add("flatten", nn::flatten())
        .add("fc1", nn::linear(48, 9))
        .add("relu", nn::relu())
        .add("fc2", nn::linear(9, 2));
    return model;
  }

  Communicator& comm_;
  nn::Sequential model_;
  nn::Adam adam_;
  decltype(distributed(std::declval<Communicator&>(), std::declval<nn::Adam&>())) optimizer_;
};

/// Saves after three steps, in both ways. The three steps after a load must be the same to the bit.
inline void expect_to_go_on(Device device) {
  for (const bool in_background : {false, true}) {
    SCOPED_TRACE(in_background);
    const ScratchFolder scratch;
    run_threads(2, [&](Communicator& comm) {
      DeviceTrainer before(comm, device, 1);
      before.train(0, 3);
      const auto then = before.values();
      CheckpointFolder folder(comm, scratch.path());
      if (in_background)
        before.training().save_in_background(folder, 3);
      else
        before.training().save(folder, 3);
      before.train(3, 3);  // the checkpoint must not contain these steps
      folder.wait();

      DeviceTrainer after(comm, device, 2), on_cpu(comm, {}, 3);
      EXPECT_NE(after.values(), then);
      EXPECT_EQ(after.training().load(folder)->step, 3);
      EXPECT_EQ(on_cpu.training().load(folder)->step, 3);
      EXPECT_EQ(after.values(), then);
      EXPECT_EQ(on_cpu.values(), then);
      after.train(3, 3);
      EXPECT_EQ(after.values(), before.values());
    });
  }
}

/// Flips a bit of one rank's parameter on the device.
inline void expect_a_sentinel_to_see(Device device) {
  run_threads(3, [&](Communicator& comm) {
    DeviceTrainer trainer(comm, device, 1);
    nn::Sentinel sentinel(comm, trainer.parameters(), 2);
    trainer.train(0, 2);
    sentinel.look(2);
    const auto weight = trainer.parameters()[2];
    ASSERT_EQ(weight.name, "fc1.weight");
    std::vector<uint32_t> bits(static_cast<size_t>(weight.value.count()));
    auto* bytes = reinterpret_cast<std::byte*>(bits.data());
    copy_to_host(bytes, weight.value);
    if (comm.rank() == 1) bits[100] ^= 1;
    copy_from_host(weight.value, bytes);
    sentinel.look(3);  // not yet
    expect_error(
        ErrorCode::mismatch,
        "sentinel: at step 4 parameter \"fc1.weight\" differs on rank 1, while the others agree",
        [&] { sentinel.look(4); });
  });
}

}  // namespace tutti::test
