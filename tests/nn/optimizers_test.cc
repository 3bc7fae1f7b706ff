#include "tutti/adapters/nn/optimizers.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tutti::nn {
namespace {

// One parameter of one element, whose gradient at step t is 0.3 sin(t). The tests repeat the
// formulas in double.
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
  // The schedule counts its drops from the end of the warm-up.
  const StepSchedule warmed{.base = 1.0, .every = 10, .factor = 0.5, .warmup = 4};
  EXPECT_EQ(warmed(1), (ConstantSchedule{1.0, 4})(1));
  EXPECT_EQ(warmed(13), 1.0);
  EXPECT_EQ(warmed(14), 0.5);
  EXPECT_EQ((ConstantSchedule{0.3, 0})(1000), 0.3);
}

// Only a matrix gets its own rate and weight decay; a bias gets neither.
TEST(Optimizers, LarsAndLambGoByTheNormsOfEachParameter) {
  const std::vector<double> begin{0.5, -1, 2, 0.25};
  for (const bool is_matrix : {true, false}) {
    const Shape shape = is_matrix ? Shape{2, 2} : Shape{4};
    const auto make = [&] {
      Parameter parameter{"w", Tensor(shape, DataType::f32), Tensor(shape, DataType::f32),
                          std::make_shared<GradientReady>()};
      std::copy(begin.begin(), begin.end(), parameter.value.as<float>());
      return parameter;
    };
    const auto lars_parameter = make(), lamb_parameter = make();
    Lars lars({lars_parameter}, {.learning_rate = kRate, .weight_decay = kDecay, .trust = 0.1});
    Lamb lamb({lamb_parameter}, {.learning_rate = kRate, .weight_decay = kDecay});
    const auto norm = [](const std::vector<double>& values) {
      double sum = 0;
      for (const double value : values) sum += value * value;
      return std::sqrt(sum);
    };
    const double decay = is_matrix ? kDecay : 0;
    std::vector<double> a = begin, velocity(4), b = begin, m(4), v(4), g(4), u(4);
    for (int t = 1; t <= kSteps; ++t) {
      for (size_t i = 0; i < 4; ++i) {
        g[i] = static_cast<float>(0.3 * std::sin(t + static_cast<double>(i)));
        lars_parameter.gradient.as<float>()[i] = lamb_parameter.gradient.as<float>()[i] =
            static_cast<float>(g[i]);
      }
      const double lars_rate =
          kRate * (is_matrix ? 0.1 * norm(a) / (norm(g) + decay * norm(a)) : 1);
      for (size_t i = 0; i < 4; ++i) {
        velocity[i] = 0.9 * velocity[i] + lars_rate * (g[i] + decay * a[i]);
        a[i] -= velocity[i];
        m[i] = 0.9 * m[i] + 0.1 * g[i];
        v[i] = 0.999 * v[i] + 0.001 * g[i] * g[i];
        u[i] = m[i] / (1 - std::pow(0.9, t)) / (std::sqrt(v[i] / (1 - std::pow(0.999, t))) + 1e-6) +
               decay * b[i];
      }
      const double lamb_rate = kRate * (is_matrix ? norm(b) / norm(u) : 1);
      for (size_t i = 0; i < 4; ++i) b[i] -= lamb_rate * u[i];
      lars.step();
      lamb.step();
      for (size_t i = 0; i < 4; ++i) {
        ASSERT_NEAR(lars_parameter.value.as<float>()[i], a[i], 1e-5) << t;
        ASSERT_NEAR(lamb_parameter.value.as<float>()[i], b[i], 1e-4) << t;
      }
    }
  }
}

// If a norm is zero, the plain rate is used, and no NaN appears.
TEST(Optimizers, LarsAndLambStepAwayFromZero) {
  Parameter zero{"w", Tensor(Shape{1, 2}, DataType::f32), Tensor(Shape{1, 2}, DataType::f32),
                 std::make_shared<GradientReady>()};
  Lars lars({zero}, {.learning_rate = 1});
  lars.step();
  EXPECT_EQ(zero.value.as<float>()[0], 0);
  zero.gradient.as<float>()[0] = 0.5f;
  lars.step();
  EXPECT_EQ(zero.value.as<float>()[0], -0.5f);
  Lamb lamb({zero}, {.learning_rate = 0.5, .weight_decay = 0});
  zero.value.as<float>()[0] = 0;
  lamb.step();
  EXPECT_NEAR(zero.value.as<float>()[0], -0.5f, 1e-4);
}

}  // namespace
}  // namespace tutti::nn
