// Optimizer steps on a GPU: equal to the CPU's, and refused if operands do not fit.

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/fake_cuda/fake_cuda_fixture.h"
#include "tests/fake_cuda/step_check.h"
#include "tests/nn/layer_check.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tutti/adapters/nn/kernels/optimizer_steps.h"
#include "tutti/adapters/nn/kernels/step_kernels.h"
#include "tutti/nn.h"
#include "tutti/tensor/tensor.h"

namespace tutti {
namespace {

using test::FakeCudaTest;
using test::kFake;

TEST_F(FakeCudaTest, StepsEqualTheCpusToTheBit) {
  test::expect_adam_steps_as_on_the_cpu_to_the_bit(*kernels_);
}
TEST_F(FakeCudaTest, LarsAndLambStepAsOnTheCpu) {
  test::expect_lars_and_lamb_step_as_on_the_cpu(*kernels_);
}

TEST_F(FakeCudaTest, LarsAndLambLearnAsOnTheCpu) {
  const auto learn = [](Device device, bool is_lamb) {
    nn::Sequential model(3, 1, device);
    model.add("fc1", nn::linear(5, 8)).add("relu", nn::relu()).add("fc2", nn::linear(8, 3));
    const auto images = test::noise_tensor(Shape{16, 5}, 1);
    const Tensor labels(Shape{16}, DataType::i64);
    for (int64_t i = 0; i < 16; ++i) labels.as<int64_t>()[i] = i % 3;
    const auto train = [&](auto optimizer) {
      double sum = 0;
      for (int step = 0; step < 5; ++step) {
        model.zero_grad();
        const nn::CrossEntropy loss(model.forward(images), labels);
        model.backward(loss);
        optimizer.step();
        sum = loss.sum();
      }
      return sum;
    };
    return is_lamb ? train(nn::Lamb(model.parameters(), {.learning_rate = 0.05}))
                   : train(nn::Lars(model.parameters(), {.learning_rate = 2, .trust = 0.1}));
  };
  for (const bool is_lamb : {false, true})
    EXPECT_NEAR(learn({}, is_lamb), learn(kFake, is_lamb), 1e-3) << is_lamb;
}

// A list of parameters with the same beginning as the list before must be treated as another list.
TEST_F(FakeCudaTest, AnAgreementScalesTheListItIsGiven) {
  const auto scaled = [](Communicator& comm, Device device) {
    nn::Sequential model(3, 1, device);
    model.add("fc1", nn::linear(5, 8)).add("relu", nn::relu()).add("fc2", nn::linear(8, 3));
    const auto images = test::noise_tensor(Shape{16, 5}, 1);
    const Tensor labels(Shape{16}, DataType::i64);
    nn::StepAgreement agreement(comm, {.clip = 0.1, .loss_scale = {.first = 1024}});
    std::vector<double> all;
    for (const int count : {2, 4, 2, 3}) {
      model.zero_grad();
      const nn::CrossEntropy loss(model.forward(images), labels);
      model.backward(loss, agreement.divisor());
      agreement.send(loss);
      auto parameters = model.parameters();
      parameters.erase(parameters.begin() + count, parameters.end());
      all.push_back(agreement.finish(parameters).norm);
      for (const auto& parameter : model.parameters())
        for (const double value : test::values_of(on_host(parameter.gradient)))
          all.push_back(value);
    }
    return all;
  };
  test::run_threads(1, [&](Communicator& comm) {
    const auto expected = scaled(comm, {}), got = scaled(comm, kFake);
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_NEAR(got[i], expected[i], 1e-3 * std::max(1.0, std::abs(expected[i]))) << i;
  });
}

// If any operand differs, other kernels are used; the same operands get the same kernels.
TEST_F(FakeCudaTest, KeptKernelsAreThoseOfTheOperands) {
  const auto tensor = [&](int64_t count) {
    return kernels_->make_tensor(Shape{count}, DataType::f32);
  };
  const Tensor value = tensor(4), gradient = tensor(4), first = tensor(4), other = tensor(4);
  const Tensor longer = tensor(8), also_longer = tensor(8);
  const auto part = [](const Tensor& whole, int64_t count) {
    return TensorView(whole.data(), Shape{count}, DataType::f32, whole.device(),
                      whole.view().stream());
  };
  const std::vector<std::vector<StepOperands>> lists = {
      {{value, gradient}},
      {{value, other}},
      {{other, gradient}},
      {{value, gradient, first}},
      {{value, gradient, first, other}},
      {{value, gradient, first, other, false}},
      {{value, gradient}, {other, first}},
      {{value, gradient}, {first, other}},
      {{longer, also_longer}},
      {{part(longer, 4), part(also_longer, 4)}},
  };
  KeptStepKernels kept;
  for (size_t i = 0; i < lists.size(); ++i)
    for (size_t k = 0; k < lists.size(); ++k) {
      // Only the gradients of the requested list may be scaled.
      for (const auto& one : {value, gradient, first, other, longer, also_longer})
        copy_from_host(one, reinterpret_cast<const std::byte*>(std::vector<float>(8, 1).data()));
      kept.of(lists[i]).scale_gradients(1, 0);
      int64_t count = 0;
      for (const auto& one : lists[k]) count += one.gradient.count();
      auto& kernels = kept.of(lists[k]);
      EXPECT_EQ(&kernels, &kept.of(lists[k]));
      kernels.scale_gradients(2, 0);
      EXPECT_DOUBLE_EQ(kernels.outcome().norm, 2 * std::sqrt(static_cast<double>(count)));
      for (const auto& one : lists[k])
        EXPECT_EQ(test::values_of(on_host(Tensor(one.gradient, nullptr)))[0], 2) << i << " " << k;
    }
}

TEST_F(FakeCudaTest, GradientsAreScaledAndClipped) {
  test::StepSet set(*kernels_);
  const auto steps = make_step_kernels(set.operands);
  double squares = 0;
  for (const auto& gradient : set.gradients)
    for (const double value : test::values_of(gradient)) squares += value * value;
  const double norm = std::sqrt(squares) * 0.5;
  steps->scale_gradients(0.5, 2);
  const auto outcome = steps->outcome();
  EXPECT_NEAR(outcome.norm, norm, 1e-9 * norm);
  EXPECT_FALSE(outcome.is_skipped);
  for (size_t i = 0; i < set.gradients.size(); ++i) {
    const auto scaled = test::values_of(on_host(set.device_gradients[i]));
    const auto before = test::values_of(set.gradients[i]);
    for (size_t k = 0; k < before.size(); ++k)
      EXPECT_NEAR(scaled[k], before[k] * 0.5 * 2 / norm, 1e-6 * std::abs(before[k]));
  }
}

TEST_F(FakeCudaTest, AGradientThatIsNoNumberIsLeftAsItWas) {
  for (const float strange :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    test::StepSet set(*kernels_);
    set.gradients[4].as<float>()[4095] = strange;
    const auto bad = kernels_->upload(set.gradients[4]);
    set.operands[4].gradient = bad;
    const auto steps = make_step_kernels(set.operands);
    steps->scale_gradients(0.5, 0);
    EXPECT_TRUE(steps->outcome().is_skipped);
    EXPECT_EQ(test::values_of(on_host(set.device_gradients[3])), test::values_of(set.gradients[3]));
  }
}

TEST_F(FakeCudaTest, StepsOfWhatDiffersAreRefused) {
  test::expect_refused("this step is for parameters on a GPU", [] { make_step_kernels({}); });
  const auto value = kernels_->make_tensor(Shape{4}, DataType::f32);
  test::expect_refused(
      "an optimizer's step got f32[3] on fake:0; expected f32[4] on fake:0 and", [&] {
        make_step_kernels({{value, kernels_->make_tensor(Shape{3}, DataType::f32)}});
      });
  test::expect_refused("an optimizer's step got f32[4] on cpu; expected f32[4] on fake:0", [&] {
    make_step_kernels({{value, Tensor(Shape{4}, DataType::f32)}});
  });
}

}  // namespace
}  // namespace tutti
