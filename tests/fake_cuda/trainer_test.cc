// Functions besides layers that a trainer calls with tensors on a GPU. They work as on the CPU, or
// say that they accept host memory only. Uses the simulated GPU.

#include <limits>
#include <vector>

#include "tests/fake_cuda/fake_cuda_fixture.h"
#include "tests/nn/layer_check.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tutti/adapters/optimizer.h"
#include "tutti/adapters/sharded/placed_tensor.h"
#include "tutti/nn.h"
#include "tutti/tensor/tensor.h"

namespace tutti {
namespace {

using DeviceTraining = test::FakeCudaTest;

std::vector<reference::Values> values_of(const nn::Sequential& model) {
  std::vector<reference::Values> all;
  for (const auto& parameter : model.parameters())
    all.push_back(test::values_of(on_host(parameter.value)));
  return all;
}

TEST_F(DeviceTraining, NormsAndLabelsAreOfTheHostsMemory) {
  const Tensor there = kernels_->upload(test::noise_tensor(Shape{2, 4}, 1));
  const std::vector<nn::Parameter> parameters = {{"w", there, there, nullptr}};
  test::expect_refused(
      "clip_by_global_norm takes gradients in host memory, \"w\" is on fake:0; StepAgreement clips "
      "there",
      [&] { clip_by_global_norm(parameters, 1); });
  test::run_threads(1, [&](Communicator& comm) {
    test::expect_refused("replicated, \"parameter.w\" is f32 on fake:0",
                         [&] { global_norm(comm, placed_parameters(parameters)); });
  });
  const Tensor labels = kernels_->upload(Tensor(Shape{2}, DataType::i64));
  test::expect_refused(
      "cross entropy got labels on fake:0, expected them in host memory, where they are checked",
      [&] { nn::CrossEntropy(there, labels); });
  test::expect_refused("count_correct got labels on fake:0",
                       [&] { nn::count_correct(there, labels); });
  test::expect_refused("a tensor on fake:0 is copied to fake:0 only through the host",
                       [&] { kernels_->upload(there); });
}

TEST_F(DeviceTraining, ReplicasThatStartUnequalAreRefused) {
  test::run_threads(2, [](Communicator& comm) {
    for (const bool is_equal : {true, false}) {
      nn::Sequential model(is_equal ? 1 : static_cast<uint64_t>(comm.rank()) + 1, 1, test::kFake);
      model.add("fc", nn::linear(3, 2));
      nn::Sgd sgd(model.parameters(), {.learning_rate = 0.1});
      const auto make = [&] { distributed(comm, sgd, {.broadcast_first = false}); };
      if (is_equal)
        make();
      else
        test::expect_error(ErrorCode::mismatch,
                           "parameter \"fc.weight\" begins with different values", make);
    }
  });
}

TEST_F(DeviceTraining, AMatrixFactorizationLearnsAsOnTheCpu) {
  const Tensor pairs(Shape{6, 2}, DataType::i64);
  for (int64_t i = 0; i < 6; ++i) {
    pairs.as<int64_t>()[2 * i] = i % 4;
    pairs.as<int64_t>()[2 * i + 1] = i % 3;
  }
  const auto wanted = test::noise_tensor(Shape{6, 1}, 2);
  std::vector<std::vector<reference::Values>> all;
  for (const auto device : {Device{}, test::kFake}) {
    nn::Sequential model(3, 1, device);
    model.add("ratings", nn::matrix_factorization(4, 3, 2));
    nn::Sgd sgd(model.parameters(), {.learning_rate = 0.1});
    all.push_back(values_of(model));
    for (int step = 0; step < 5; ++step) {
      model.zero_grad();
      model.backward(nn::MeanSquaredError(model.forward(pairs), wanted));
      sgd.step();
    }
    all.push_back(values_of(model));
  }
  EXPECT_EQ(all[0], all[2]);
  EXPECT_NE(all[0], all[1]);
  for (size_t p = 0; p < all[1].size(); ++p)
    for (size_t i = 0; i < all[1][p].size(); ++i) EXPECT_NEAR(all[1][p][i], all[3][p][i], 1e-6);
}

// One rank's gradient is NaN or infinite: no rank takes the step.
TEST_F(DeviceTraining, WhatIsNoNumberAnywhereSkipsTheStepEverywhere) {
  test::run_threads(3, [](Communicator& comm) {
    nn::Sequential model(1, 1, test::kFake);
    model.add("fc1", nn::linear(4, 5)).add("fc2", nn::linear(5, 3));
    nn::Sgd sgd(model.parameters(), {.learning_rate = 0.5, .momentum = 0.9});
    auto optimizer = distributed(comm, sgd, {.op = ReduceOp::sum});
    nn::StepAgreement agreement(comm, {.loss_scale = {.first = 256}});
    for (uint64_t step = 0; step < 6; ++step) {
      const auto images = test::noise_tensor(Shape{2, 4}, step);
      model.zero_grad();
      const nn::CrossEntropy loss(model.forward(images), Tensor(Shape{2}, DataType::i64));
      if (step == 3 && comm.rank() == 2) {
        const auto bias = model.parameters()[1];
        const std::vector<float> strange(5, std::numeric_limits<float>::infinity());
        copy_from_host(bias.gradient, reinterpret_cast<const std::byte*>(strange.data()));
      }
      model.backward(loss, agreement.divisor());
      agreement.send(loss);
      optimizer.synchronize();
      const auto before = values_of(model);
      const bool is_skipped = agreement.finish(sgd.parameters()).is_skipped;
      EXPECT_EQ(is_skipped, step == 3);
      if (is_skipped)
        optimizer.skip();
      else
        optimizer.step();
      EXPECT_EQ(values_of(model) == before, step == 3);
      EXPECT_EQ(agreement.scale(), step < 3 ? 256 : 128);
    }
  });
}

}  // namespace
}  // namespace tutti
