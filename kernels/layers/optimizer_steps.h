#pragma once

#include <cstdint>
#include <span>

namespace tutti {

/// One step of an optimizer over one parameter, in place, f32. All spans have the parameter's
/// length. Weight decay is an L2 term (added to the gradient) unless it is called decoupled.

/// SGD with momentum (Sutskever et al. 2013, in the form with the learning rate outside the
/// velocity): v = momentum * v + g; w -= learning_rate * (nesterov ? g + momentum * v : v).
/// Without momentum `velocity` may be empty.
struct SgdSettings {
  float learning_rate = 0;
  float momentum = 0;
  float weight_decay = 0;
  bool nesterov = false;
};
void sgd_step(const SgdSettings& settings, std::span<float> value, std::span<const float> gradient,
              std::span<float> velocity);

/// Adam (Kingma and Ba 2015) and, with `decoupled`, AdamW (Loshchilov and Hutter 2019):
/// m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;
/// w -= learning_rate * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon);
/// decoupled first multiplies w by 1 - learning_rate * weight_decay. `step` (t) counts from 1.
struct AdamSettings {
  double learning_rate = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  bool decoupled = false;
  int64_t step = 1;
};
void adam_step(const AdamSettings& settings, std::span<float> value,
               std::span<const float> gradient, std::span<float> first_moment,
               std::span<float> second_moment);

/// RMSProp (Tieleman and Hinton 2012) with optional momentum: s = decay s + (1 - decay) g^2;
/// v = momentum v + g / (sqrt(s) + epsilon); w -= learning_rate * v. Without momentum `velocity`
/// may be empty.
struct RmsPropSettings {
  float learning_rate = 0;
  float decay = 0.99f;
  float epsilon = 1e-8f;
  float momentum = 0;
  float weight_decay = 0;
};
void rms_prop_step(const RmsPropSettings& settings, std::span<float> value,
                   std::span<const float> gradient, std::span<float> mean_square,
                   std::span<float> velocity);

/// Layer-wise rates: a step of each parameter is as long as its norm says. A parameter may be one
/// part of several, whose sums of squares are added up between the two halves of a step. A ratio is
/// 1 where one of its norms is 0, and everywhere without `is_adapted`, which biases and the weights
/// of norms are spared; so is weight decay.

/// In f64 in the order of the elements.
double sum_squares(std::span<const float> values);

/// LARS (You et al. 2017): rate = learning_rate * trust * |w| / (|g| + weight_decay * |w|);
/// v = momentum * v + rate * (g + weight_decay * w); w -= v.
struct LarsSettings {
  double learning_rate = 0;
  double momentum = 0.9;
  double weight_decay = 0;
  double trust = 0.001;
};
/// The squares are those of the whole w and g.
void lars_step(const LarsSettings& settings, bool is_adapted, double value_squares,
               double gradient_squares, std::span<float> value, std::span<const float> gradient,
               std::span<float> velocity);

/// LAMB (You et al. 2020): with Adam's m and v, corrected by the step, u = m / (sqrt(v) + epsilon)
/// + weight_decay * w; w -= learning_rate * |w| / |u| * u. `step` counts from 1.
struct LambSettings {
  double learning_rate = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-6;
  double weight_decay = 0;
  int64_t step = 1;
};
/// The first half: m, v and u.
void lamb_update(const LambSettings& settings, bool is_adapted, std::span<const float> value,
                 std::span<const float> gradient, std::span<float> first_moment,
                 std::span<float> second_moment, std::span<float> update);
/// The second: w. The squares are those of the whole w and u.
void lamb_step(const LambSettings& settings, bool is_adapted, double value_squares,
               double update_squares, std::span<float> value, std::span<const float> update);

}  // namespace tutti
