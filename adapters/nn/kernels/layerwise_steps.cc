#include <cmath>

#include "tutti/adapters/nn/kernels/optimizer_steps.h"
#include "tutti/base/check.h"

namespace tutti {

double sum_squares(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * double{value};
  return sum;
}

void lars_step(const LarsSettings& settings, bool is_adapted, double value_squares,
               double gradient_squares, std::span<float> value, std::span<const float> gradient,
               std::span<float> velocity) {
  TUTTI_CHECK(gradient.size() == value.size() && velocity.size() == value.size());
  const double decay = is_adapted ? settings.weight_decay : 0;
  double ratio = 1;
  if (is_adapted && value_squares > 0 && gradient_squares > 0) {
    const double weight_norm = std::sqrt(value_squares);
    ratio = settings.trust * weight_norm / (std::sqrt(gradient_squares) + decay * weight_norm);
  }
  const double rate = settings.learning_rate * ratio;
  for (size_t i = 0; i < value.size(); ++i) {
    const double change = double{gradient[i]} + decay * double{value[i]};
    velocity[i] = static_cast<float>(settings.momentum * double{velocity[i]} + rate * change);
    value[i] -= velocity[i];
  }
}

void lamb_update(const LambSettings& settings, bool is_adapted, std::span<const float> value,
                 std::span<const float> gradient, std::span<float> first_moment,
                 std::span<float> second_moment, std::span<float> update) {
  TUTTI_CHECK(gradient.size() == value.size() && first_moment.size() == value.size() &&
              second_moment.size() == value.size() && update.size() == value.size());
  const double decay = is_adapted ? settings.weight_decay : 0;
  const double correction1 = 1 - std::pow(settings.beta1, static_cast<double>(settings.step));
  const double correction2 = 1 - std::pow(settings.beta2, static_cast<double>(settings.step));
  for (size_t i = 0; i < value.size(); ++i) {
    const double g = gradient[i];
    const double m = settings.beta1 * double{first_moment[i]} + (1 - settings.beta1) * g;
    const double v = settings.beta2 * double{second_moment[i]} + (1 - settings.beta2) * g * g;
    first_moment[i] = static_cast<float>(m);
    second_moment[i] = static_cast<float>(v);
    update[i] =
        static_cast<float>(m / correction1 / (std::sqrt(v / correction2) + settings.epsilon) +
                           decay * double{value[i]});
  }
}

void lamb_step(const LambSettings& settings, bool is_adapted, double value_squares,
               double update_squares, std::span<float> value, std::span<const float> update) {
  TUTTI_CHECK(update.size() == value.size());
  const bool has_norms = is_adapted && value_squares > 0 && update_squares > 0;
  const double ratio = has_norms ? std::sqrt(value_squares) / std::sqrt(update_squares) : 1;
  const double rate = settings.learning_rate * ratio;
  for (size_t i = 0; i < value.size(); ++i)
    value[i] = static_cast<float>(double{value[i]} - rate * double{update[i]});
}

}  // namespace tutti
