#include "tutti/adapters/nn/optimizers.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tutti/adapters/nn/schedules.h"

namespace tutti::nn {
namespace {

// One parameter of one element whose gradient at step t is 0.3 sin(t), followed by the formulas in
// double.
struct Fixture {
  Fixture() {
    Parameter parameter{"w", Tensor(Shape{1}, DataType::f32), Tensor(Shape{1}, DataType::f32),
                        std::make_shared<GradientReady>()};
    parameter.value.as<float>()[0] = 1.0f;
    parameters = {parameter};
  }
  double gradient(int step) {
    const auto value = static_cast<float>(0.3 * std::sin(step));
    parameters[0].gradient.as<float>()[0] = value;
    return value;
  }
  double value() const { return parameters[0].value.as<float>()[0]; }
  std::vector<Parameter> parameters;
};

constexpr int kSteps = 50;
constexpr double kRate = 0.05, kDecay = 0.01;

TEST(Optimizers, SgdWithMomentumAndWeightDecay) {
  for (const bool nesterov : {false, true}) {
    Fixture f;
    Sgd sgd(
        f.parameters,
        {.learning_rate = kRate, .momentum = 0.9, .weight_decay = kDecay, .nesterov = nesterov});
    double w = 1, v = 0;
    for (int t = 1; t <= kSteps; ++t) {
      const double g = f.gradient(t) + kDecay * w;
      v = 0.9 * v + g;
      w -= kRate * (nesterov ? g + 0.9 * v : v);
      sgd.step();
      ASSERT_NEAR(f.value(), w, 1e-5);
    }
  }
}

TEST(Optimizers, AdamAndAdamW) {
  for (const bool decoupled : {false, true}) {
    Fixture f;
    const AdamOptions options{.learning_rate = kRate, .weight_decay = kDecay};
    Adam adam(f.parameters, options);
    AdamW adam_w(f.parameters, options);
    double w = 1, m = 0, v = 0;
    for (int t = 1; t <= kSteps; ++t) {
      double g = f.gradient(t);
      if (decoupled)
        w *= 1 - kRate * kDecay;
      else
        g += kDecay * w;
      m = 0.9 * m + 0.1 * g;
      v = 0.999 * v + 0.001 * g * g;
      w -= kRate * (m / (1 - std::pow(0.9, t))) / (std::sqrt(v / (1 - std::pow(0.999, t))) + 1e-8);
      if (decoupled)
        adam_w.step();
      else
        adam.step();
      ASSERT_NEAR(f.value(), w, 1e-4);
    }
  }
}

TEST(Optimizers, RmsProp) {
  Fixture f;
  RmsProp optimizer(f.parameters, {.learning_rate = 0.01, .decay = 0.99, .momentum = 0.5});
  double w = 1, s = 0, v = 0;
  for (int t = 1; t <= kSteps; ++t) {
    const double g = f.gradient(t);
    s = 0.99 * s + 0.01 * g * g;
    v = 0.5 * v + g / (std::sqrt(s) + 1e-8);
    w -= 0.01 * v;
    optimizer.step();
    ASSERT_NEAR(f.value(), w, 1e-4);
  }
}

TEST(Schedules, WarmUpCosineAndSteps) {
  const CosineSchedule cosine{.base = 1.0, .total = 110, .least = 0.1, .warmup = 10};
  EXPECT_NEAR(cosine(0), 1.0 / 11, 1e-12);
  EXPECT_NEAR(cosine(9), 10.0 / 11, 1e-12);
  EXPECT_NEAR(cosine(10), 1.0, 1e-12);
  EXPECT_NEAR(cosine(60), 0.55, 1e-12);
  EXPECT_NEAR(cosine(110), 0.1, 1e-12);
  const StepSchedule steps{.base = 1.0, .every = 10, .factor = 0.5, .warmup = 0};
  EXPECT_EQ(steps(9), 1.0);
  EXPECT_EQ(steps(25), 0.25);
  EXPECT_EQ((ConstantSchedule{0.3, 0})(1000), 0.3);
}

}  // namespace
}  // namespace tutti::nn
