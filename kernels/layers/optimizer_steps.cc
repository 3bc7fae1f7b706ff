#include "tutti/kernels/layers/optimizer_steps.h"

#include <cmath>

#include "tutti/base/check.h"

namespace tutti {

// The loops are written for the compiler's vectoriser: no branch inside, no aliasing, invariants
// hoisted. Nesterov is one formula: w -= rate * (direct * g + carried * v).
void sgd_step(const SgdSettings& settings, std::span<float> value, std::span<const float> gradient,
              std::span<float> velocity) {
  const size_t count = value.size();
  TUTTI_CHECK(gradient.size() == count);
  float* __restrict w = value.data();
  const float* __restrict g = gradient.data();
  const float rate = settings.learning_rate, decay = settings.weight_decay;
  if (settings.momentum == 0) {
    for (size_t i = 0; i < count; ++i) w[i] -= rate * (g[i] + decay * w[i]);
    return;
  }
  TUTTI_CHECK(velocity.size() == count);
  float* __restrict v = velocity.data();
  const float momentum = settings.momentum;
  const float direct = settings.nesterov ? 1.0f : 0.0f;
  const float carried = settings.nesterov ? momentum : 1.0f;
  for (size_t i = 0; i < count; ++i) {
    const float d = g[i] + decay * w[i];
    v[i] = momentum * v[i] + d;
    w[i] -= rate * (direct * d + carried * v[i]);
  }
}

void adam_step(const AdamSettings& settings, std::span<float> value,
               std::span<const float> gradient, std::span<float> first_moment,
               std::span<float> second_moment) {
  const size_t count = value.size();
  TUTTI_CHECK(gradient.size() == count && first_moment.size() == count &&
              second_moment.size() == count && settings.step >= 1);
  float* __restrict w = value.data();
  const float* __restrict g = gradient.data();
  float* __restrict m = first_moment.data();
  float* __restrict v = second_moment.data();
  const auto t = static_cast<double>(settings.step);
  // The corrections of both moments are folded into two factors, so that the loop has one division:
  // rate * m/c1 / (sqrt(v/c2) + eps) = (rate/c1) m / (sqrt(v) / sqrt(c2) + eps).
  const auto rate =
      static_cast<float>(settings.learning_rate / (1.0 - std::pow(settings.beta1, t)));
  const auto correction = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(settings.beta2, t)));
  const auto beta1 = static_cast<float>(settings.beta1);
  const auto beta2 = static_cast<float>(settings.beta2);
  const auto rest1 = static_cast<float>(1.0 - settings.beta1);
  const auto rest2 = static_cast<float>(1.0 - settings.beta2);
  const auto epsilon = static_cast<float>(settings.epsilon);
  const auto coupled = settings.decoupled ? 0.0f : static_cast<float>(settings.weight_decay);
  const auto kept = settings.decoupled
                        ? static_cast<float>(1.0 - settings.learning_rate * settings.weight_decay)
                        : 1.0f;
  for (size_t i = 0; i < count; ++i) {
    const float d = g[i] + coupled * w[i];
    m[i] = beta1 * m[i] + rest1 * d;
    v[i] = beta2 * v[i] + rest2 * d * d;
    w[i] = kept * w[i] - rate * m[i] / (std::sqrt(v[i]) * correction + epsilon);
  }
}

void rms_prop_step(const RmsPropSettings& settings, std::span<float> value,
                   std::span<const float> gradient, std::span<float> mean_square,
                   std::span<float> velocity) {
  const size_t count = value.size();
  TUTTI_CHECK(gradient.size() == count && mean_square.size() == count);
  float* __restrict w = value.data();
  const float* __restrict g = gradient.data();
  float* __restrict s = mean_square.data();
  const float rate = settings.learning_rate, keep = settings.decay, rest = 1.0f - settings.decay;
  const float epsilon = settings.epsilon, decay = settings.weight_decay;
  if (settings.momentum == 0) {
    for (size_t i = 0; i < count; ++i) {
      const float d = g[i] + decay * w[i];
      s[i] = keep * s[i] + rest * d * d;
      w[i] -= rate * d / (std::sqrt(s[i]) + epsilon);
    }
    return;
  }
  TUTTI_CHECK(velocity.size() == count);
  float* __restrict v = velocity.data();
  const float momentum = settings.momentum;
  for (size_t i = 0; i < count; ++i) {
    const float d = g[i] + decay * w[i];
    s[i] = keep * s[i] + rest * d * d;
    v[i] = momentum * v[i] + d / (std::sqrt(s[i]) + epsilon);
    w[i] -= rate * v[i];
  }
}

}  // namespace tutti
