// Steps of optimizers on a GPU: equal to the CPU's, and refused where operands do not fit.

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/fake_cuda/fake_cuda_fixture.h"
#include "tests/nn/layer_check.h"
#include "tests/support/expect_error.h"
#include "tutti/kernels/layers/optimizer_steps.h"
#include "tutti/nn.h"

namespace tutti {
namespace {

using test::FakeCudaTest;
using test::kFake;

// Parameters of sizes around those of vectors and tiles.
struct StepSet {
  std::vector<Tensor> values, gradients, first, second;  // on the host
  std::vector<Tensor> device_values, device_gradients, device_first, device_second;
  std::vector<StepOperands> operands;
  explicit StepSet(LayerKernels& kernels) {
    unsigned seed = 1;
    for (const int64_t count : {1, 3, 4, 1000, 4096, 4097}) {
      for (auto* all : {&values, &gradients, &first, &second})
        all->push_back(test::noise_tensor(Shape{count}, seed++));
      for (float& square : second.back().span<float>()) square = std::abs(square);
      device_values.push_back(kernels.upload(values.back()));
      device_gradients.push_back(kernels.upload(gradients.back()));
      device_first.push_back(kernels.upload(first.back()));
      device_second.push_back(kernels.upload(second.back()));
      operands.push_back({device_values.back(), device_gradients.back(), device_first.back(),
                          device_second.back()});
    }
  }
};

TEST_F(FakeCudaTest, StepsEqualTheCpusToTheBit) {
  StepSet set(*kernels_);
  const auto steps = make_step_kernels(set.operands);
  AdamSettings settings;
  settings.learning_rate = 0.01;
  settings.weight_decay = 0.1;
  settings.decoupled = true;
  for (settings.step = 1; settings.step < 4; ++settings.step) {
    steps->step(StepKind::adam, factors_of(settings));
    for (size_t i = 0; i < set.values.size(); ++i)
      adam_step(settings, set.values[i].span<float>(), set.gradients[i].span<float>(),
                set.first[i].span<float>(), set.second[i].span<float>());
  }
  for (size_t i = 0; i < set.values.size(); ++i) {
    const auto value = kernels_->download(set.device_values[i]);
    EXPECT_EQ(std::memcmp(value.data(), set.values[i].data(), static_cast<size_t>(value.bytes())),
              0)
        << i << ": " << value.as<float>()[0] << " and " << set.values[i].as<float>()[0];
  }
}

// Norms are added up in another order, and parameters of all sizes are adapted or not.
TEST_F(FakeCudaTest, LarsAndLambStepAsOnTheCpu) {
  for (const bool is_lamb : {false, true}) {
    StepSet set(*kernels_);
    for (size_t i = 0; i < set.operands.size(); ++i) set.operands[i].is_adapted = i % 3 != 1;
    const auto steps = make_step_kernels(set.operands);
    const LarsSettings lars{.learning_rate = 0.1, .weight_decay = 0.1, .trust = 0.02};
    LambSettings lamb{.learning_rate = 0.05, .weight_decay = 0.1};
    for (lamb.step = 1; lamb.step < 4; ++lamb.step) {
      is_lamb ? steps->step(lamb) : steps->step(lars);
      for (size_t i = 0; i < set.values.size(); ++i) {
        const auto value = set.values[i].span<float>(), gradient = set.gradients[i].span<float>(),
                   first = set.first[i].span<float>(), second = set.second[i].span<float>();
        const bool is_adapted = set.operands[i].is_adapted;
        if (is_lamb) {
          std::vector<float> update(value.size());
          lamb_update(lamb, is_adapted, value, gradient, first, second, update);
          lamb_step(lamb, is_adapted, sum_squares(value), sum_squares(update), value, update);
        } else {
          lars_step(lars, is_adapted, sum_squares(value), sum_squares(gradient), value, gradient,
                    first);
        }
      }
    }
    for (size_t i = 0; i < set.values.size(); ++i) {
      test::expect_close(kernels_->download(set.device_values[i]), test::values_of(set.values[i]),
                         is_lamb ? "LAMB's value" : "LARS's value");
      test::expect_close(kernels_->download(set.device_first[i]), test::values_of(set.first[i]),
                         "first state");
      if (is_lamb)
        test::expect_close(kernels_->download(set.device_second[i]), test::values_of(set.second[i]),
                           "second state");
    }
  }
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

TEST_F(FakeCudaTest, GradientsAreScaledAndClipped) {
  StepSet set(*kernels_);
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
    const auto scaled = test::values_of(kernels_->download(set.device_gradients[i]));
    const auto before = test::values_of(set.gradients[i]);
    for (size_t k = 0; k < before.size(); ++k)
      EXPECT_NEAR(scaled[k], before[k] * 0.5 * 2 / norm, 1e-6 * std::abs(before[k]));
  }
}

TEST_F(FakeCudaTest, AGradientThatIsNoNumberIsLeftAsItWas) {
  for (const float strange :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    StepSet set(*kernels_);
    set.gradients[4].as<float>()[4095] = strange;
    const auto bad = kernels_->upload(set.gradients[4]);
    set.operands[4].gradient = bad;
    const auto steps = make_step_kernels(set.operands);
    steps->scale_gradients(0.5, 0);
    EXPECT_TRUE(steps->outcome().is_skipped);
    EXPECT_EQ(test::values_of(kernels_->download(set.device_gradients[3])),
              test::values_of(set.gradients[3]));
  }
}

TEST_F(FakeCudaTest, StepsOfWhatDiffersAreRefused) {
  test::expect_refused("steps of no parameters", [] { make_step_kernels({}); });
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
