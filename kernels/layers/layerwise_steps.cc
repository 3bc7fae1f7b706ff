#include <cmath>
#include <vector>

#include "tutti/base/check.h"
#include "tutti/kernels/layers/optimizer_steps.h"

namespace tutti {

namespace {

double norm_of(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * double{value};
  return std::sqrt(sum);
}

}  // namespace

void lars_step(const LarsSettings& settings, bool is_adapted, std::span<float> value,
               std::span<const float> gradient, std::span<float> velocity) {
  TUTTI_CHECK(gradient.size() == value.size() && velocity.size() == value.size());
  const double decay = is_adapted ? settings.weight_decay : 0;
  double ratio = 1;
  if (is_adapted) {
    const double weight_norm = norm_of(value), gradient_norm = norm_of(gradient);
    if (weight_norm > 0 && gradient_norm > 0)
      ratio = settings.trust * weight_norm / (gradient_norm + decay * weight_norm);
  }
  const double rate = settings.learning_rate * ratio;
  for (size_t i = 0; i < value.size(); ++i) {
    const double change = double{gradient[i]} + decay * double{value[i]};
    velocity[i] = static_cast<float>(settings.momentum * double{velocity[i]} + rate * change);
    value[i] -= velocity[i];
  }
}

void lamb_step(const LambSettings& settings, bool is_adapted, std::span<float> value,
               std::span<const float> gradient, std::span<float> first_moment,
               std::span<float> second_moment) {
  TUTTI_CHECK(gradient.size() == value.size() && first_moment.size() == value.size() &&
              second_moment.size() == value.size());
  const double decay = is_adapted ? settings.weight_decay : 0;
  const double correction1 = 1 - std::pow(settings.beta1, static_cast<double>(settings.step));
  const double correction2 = 1 - std::pow(settings.beta2, static_cast<double>(settings.step));
  std::vector<float> updates(value.size());
  for (size_t i = 0; i < value.size(); ++i) {
    const double g = gradient[i];
    const double m = settings.beta1 * double{first_moment[i]} + (1 - settings.beta1) * g;
    const double v = settings.beta2 * double{second_moment[i]} + (1 - settings.beta2) * g * g;
    first_moment[i] = static_cast<float>(m);
    second_moment[i] = static_cast<float>(v);
    updates[i] =
        static_cast<float>(m / correction1 / (std::sqrt(v / correction2) + settings.epsilon) +
                           decay * double{value[i]});
  }
  double ratio = 1;
  if (is_adapted) {
    const double weight_norm = norm_of(value), update_norm = norm_of(updates);
    if (weight_norm > 0 && update_norm > 0) ratio = weight_norm / update_norm;
  }
  const double rate = settings.learning_rate * ratio;
  for (size_t i = 0; i < value.size(); ++i)
    value[i] = static_cast<float>(double{value[i]} - rate * double{updates[i]});
}

}  // namespace tutti
