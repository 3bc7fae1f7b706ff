#pragma once

#include <cstdint>
#include <span>

namespace tutti {

/// Each function does one step of an optimizer over one parameter, in place, in f32. All spans have
/// the parameter's length. Weight decay is an L2 term (added to the gradient) unless it is
/// decoupled.

/// SGD with momentum (Sutskever et al. 2013, in the form with the learning rate outside the
/// velocity): v = momentum * v + g; w -= learning_rate * (nesterov ? g + momentum * v : v).
/// `velocity` may be empty if momentum is 0.
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
/// w -= learning_rate * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon).
/// AdamW first multiplies w by 1 - learning_rate * weight_decay. `step` (t) counts from 1.
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

/// RMSProp (Tieleman and Hinton 2012) with optional momentum: s = decay s + (1 - decay) g^2; v =
/// momentum v + g / (sqrt(s) + epsilon); w -= learning_rate * v. `velocity` may be empty if
/// momentum is 0.
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

/// Steps with layer-wise rates: the norms of each parameter determine the length of its step. A
/// parameter may be split into parts; the caller then sums the parts' squares between the two
/// halves of a step. The ratio of two norms counts as 1 if one of them is 0, or if `is_adapted` is
/// false. Biases and the weights of normalisation layers are not adapted and get no weight decay.

/// Returns the sum of squares in f64, added in the order of the elements.
double sum_squares(std::span<const float> values);

/// LARS (You et al. 2017): rate = learning_rate * trust * |w| / (|g| + weight_decay * |w|);
/// v = momentum * v + rate * (g + weight_decay * w); w -= v.
struct LarsSettings {
  double learning_rate = 0;
  double momentum = 0.9;
  double weight_decay = 0;
  double trust = 0.001;
};
/// `value_squares` and `gradient_squares` are the sums of squares of the whole w and g.
void lars_step(const LarsSettings& settings, bool is_adapted, double value_squares,
               double gradient_squares, std::span<float> value, std::span<const float> gradient,
               std::span<float> velocity);

/// LAMB (You et al. 2020), with Adam's bias-corrected m and v: u = m / (sqrt(v) + epsilon) +
/// weight_decay * w; w -= learning_rate * |w| / |u| * u. `step` counts from 1.
struct LambSettings {
  double learning_rate = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-6;
  double weight_decay = 0;
  int64_t step = 1;
};
/// First half: updates m and v and computes u.
void lamb_update(const LambSettings& settings, bool is_adapted, std::span<const float> value,
                 std::span<const float> gradient, std::span<float> first_moment,
                 std::span<float> second_moment, std::span<float> update);
/// Second half: updates w. `value_squares` and `update_squares` are the sums of squares of the
/// whole w and u.
void lamb_step(const LambSettings& settings, bool is_adapted, double value_squares,
               double update_squares, std::span<float> value, std::span<const float> update);

}  // namespace tutti
