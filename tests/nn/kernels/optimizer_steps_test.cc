// Optimizer steps over whole arrays are compared with the formulas in double: lengths around the
// vectors' widths, with and without each optional term, on every instruction set.

#include "tutti/adapters/nn/kernels/optimizer_steps.h"

#include "tests/kernels/kernel_test.h"
//
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "tutti/base/error.h"

namespace tutti {
namespace {

constexpr int kSteps = 20;

class OptimizerSteps : public OnEveryTarget {};
TUTTI_ON_EVERY_TARGET(OptimizerSteps);

// Runs `step(value, gradient, a, b)` and `formula(w, g, a, b, t)` side by side on arrays of several
// lengths. `a` and `b` are the optimizer's two state arrays; unused ones stay zero.
void compare(const std::function<void(std::span<float>, std::span<const float>, std::span<float>,
                                      std::span<float>, int64_t)>& step,
             const std::function<void(double&, double, double&, double&, double)>& formula) {
  for (const size_t count : {0, 1, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 1001}) {
    std::mt19937 random(static_cast<unsigned>(count) + 1);
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::vector<float> value(count), gradient(count), a(count), b(count);
    for (float& w : value) w = uniform(random);
    std::vector<double> value_d(value.begin(), value.end()), a_d(count), b_d(count);
    for (int64_t t = 1; t <= kSteps; ++t) {
      for (float& g : gradient) g = uniform(random);
      step(value, gradient, a, b, t);
      for (size_t i = 0; i < count; ++i)
        formula(value_d[i], gradient[i], a_d[i], b_d[i], static_cast<double>(t));
    }
    for (size_t i = 0; i < count; ++i)
      ASSERT_NEAR(value[i], value_d[i], 2e-5) << i << " of " << count;
  }
}

TEST_P(OptimizerSteps, SgdFollowsItsFormula) {
  for (const double momentum : {0.0, 0.9})
    for (const double decay : {0.0, 0.05})
      for (const bool nesterov : {false, true})
        compare(
            [&](auto value, auto gradient, auto velocity, auto, int64_t) {
              const SgdSettings settings{0.05f, static_cast<float>(momentum),
                                         static_cast<float>(decay), nesterov};
              sgd_step(settings, value, gradient, momentum == 0 ? std::span<float>() : velocity);
            },
            [&](double& w, double g, double& v, double&, double) {
              g += decay * w;
              v = momentum * v + g;
              w -= 0.05 * (nesterov ? g + momentum * v : v);
            });
}

TEST_P(OptimizerSteps, AdamAndAdamWFollowTheirFormula) {
  for (const bool decoupled : {false, true})
    for (const double decay : {0.0, 0.05})
      compare(
          [&](auto value, auto gradient, auto first, auto second, int64_t t) {
            adam_step({.learning_rate = 0.01,
                       .beta1 = 0.8,
                       .beta2 = 0.95,
                       .epsilon = 1e-6,
                       .weight_decay = decay,
                       .decoupled = decoupled,
                       .step = t},
                      value, gradient, first, second);
          },
          [&](double& w, double g, double& m, double& v, double t) {
            if (decoupled)
              w *= 1 - 0.01 * decay;
            else
              g += decay * w;
            m = 0.8 * m + 0.2 * g;
            v = 0.95 * v + 0.05 * g * g;
            w -= 0.01 * (m / (1 - std::pow(0.8, t))) /
                 (std::sqrt(v / (1 - std::pow(0.95, t))) + 1e-6);
          });
}

TEST_P(OptimizerSteps, RmsPropFollowsItsFormula) {
  for (const double momentum : {0.0, 0.5})
    for (const double decay : {0.0, 0.05})
      compare(
          [&](auto value, auto gradient, auto mean_square, auto velocity, int64_t) {
            const RmsPropSettings settings{0.01f, 0.9f, 1e-6f, static_cast<float>(momentum),
                                           static_cast<float>(decay)};
            rms_prop_step(settings, value, gradient, mean_square,
                          momentum == 0 ? std::span<float>() : velocity);
          },
          [&](double& w, double g, double& s, double& v, double) {
            g += decay * w;
            s = 0.9 * s + 0.1 * g * g;
            v = momentum * v + g / (std::sqrt(s) + 1e-6);
            w -= 0.01 * v;
          });
}

// The reference processes one element at a time on the plainest instruction set. A vector's width,
// an element's position in it and contracted operations must not change any bit.
TEST_P(OptimizerSteps, BitsAreThoseOfEveryOtherTarget) {
  constexpr size_t kCount = 1001, kShift = 3;
  using Step = std::function<void(std::span<float>, std::span<const float>, std::span<float>,
                                  std::span<float>)>;
  const Step steps[] = {
      [](auto value, auto gradient, auto first, auto) {
        sgd_step({0.05f, 0.9f, 0.01f, true}, value, gradient, first);
      },
      [](auto value, auto gradient, auto first, auto second) {
        adam_step({.learning_rate = 0.01, .weight_decay = 0.03, .step = 3}, value, gradient, first,
                  second);
      },
      [](auto value, auto gradient, auto first, auto second) {
        rms_prop_step({0.01f, 0.9f, 1e-6f, 0.5f, 0.03f}, value, gradient, first, second);
      }};
  for (const Step& step : steps) {
    std::mt19937 random(5);
    std::uniform_real_distribution<float> uniform(0.001f, 1);
    std::vector<std::vector<float>> whole(4, std::vector<float>(kCount));
    for (auto& array : whole)
      for (float& x : array) x = uniform(random);
    auto single = whole;
    const auto part = [&](size_t array) { return std::span(whole[array]).subspan(kShift); };
    step(part(0), part(1), part(2), part(3));
    hwy::GetChosenTarget().Update(processor_targets().back());
    for (size_t i = kShift; i < kCount; ++i) {
      const auto one = [&](size_t array) { return std::span(single[array]).subspan(i, 1); };
      step(one(0), one(1), one(2), one(3));
    }
    hwy::GetChosenTarget().Update(GetParam());
    for (size_t array = 0; array < whole.size(); ++array)
      EXPECT_EQ(std::memcmp(whole[array].data(), single[array].data(), kCount * sizeof(float)), 0)
          << "array " << array << " of step " << &step - steps;
  }
}

TEST_P(OptimizerSteps, LengthsMustAgree) {
  std::vector<float> three(3), two(2);
  EXPECT_THROW(sgd_step({}, three, two, {}), Error);
  EXPECT_THROW(sgd_step({.momentum = 0.5f}, three, three, two), Error);
  EXPECT_THROW(adam_step({}, three, three, three, two), Error);
  EXPECT_THROW(adam_step({.step = 0}, three, three, three, three), Error);
  EXPECT_THROW(rms_prop_step({.momentum = 0.5f}, three, three, three, two), Error);
}

}  // namespace
}  // namespace tutti
