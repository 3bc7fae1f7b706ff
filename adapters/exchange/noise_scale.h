#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/tensor/tensor.h"

namespace tutti {

/// Measures the gradient noise scale while gradients are averaged, and lets batches grow by it. The
/// policy must be equal on all ranks. Measuring costs 8 bytes per step.
struct NoisePolicy {
  /// Number of samples of one rank in one backward pass. The gradient is the mean over them. With 0
  /// nothing is measured.
  int64_t batch = 0;
  /// The weight of the old value when a step updates a running mean.
  double smoothing = 0.95;
  /// The batch grows towards the noise scale, up to this many backward passes per step. Gradients
  /// are then also means over the passes of a step. With 0 the batch does not grow.
  int most_passes = 0;
  /// Number of measured steps before the batch first grows, and between two growths.
  int patience = 20;
};

/// Throws Error(invalid_argument) for values that are out of range. `ranks` must be at least two,
/// because the noise is seen in how much the ranks differ.
void check_noise_policy(const NoisePolicy& policy, int passes, int ranks);
std::vector<std::string> noise_settings(const NoisePolicy& policy);

/// Unbiased estimates from one step of ranks with `batch` samples each (McCandlish et al. 2018,
/// appendix A). gradient_square estimates the squared norm of the true gradient. variance estimates
/// the trace of the covariance of one sample's gradient.
struct NoiseEstimates {
  double gradient_square = 0;
  double variance = 0;
};
NoiseEstimates estimate_noise(double mean_square_of_ranks, double square_of_mean, double batch,
                              int ranks);

/// The sum of squares of an f32 or f64 tensor in host memory.
double sum_of_squares(const TensorView& tensor);

/// Keeps a running mean of each estimate, because a running mean of their quotient would be biased.
/// Both means start at zero and are too small by the same factor at first, so their quotient needs
/// no correction. The inputs are equal on all ranks, and therefore so are the results.
class NoiseScale {
 public:
  NoiseScale(const NoisePolicy& policy, int passes, int ranks);

  /// Adds a step's measurement: the mean over the ranks of the squared norm of a rank's gradient,
  /// and the squared norm of the mean gradient of all ranks.
  void add(double mean_square_of_ranks, double square_of_mean);
  /// Returns the batch size, in samples of all ranks, above which larger batches help little:
  /// variance / squared norm. It is 0 before the first step, and infinite if the gradient is lost
  /// in noise.
  double value() const;
  /// Returns the number of backward passes of the next step. It only grows, and at most doubles at
  /// a time.
  int passes() const { return static_cast<int>(numbers_.as<double>()[kPasses]); }
  bool grows() const { return policy_.most_passes > 0; }
  /// Returns an f64[5] tensor, for checkpoints.
  const Tensor& state() const { return numbers_; }

 private:
  enum Place { kGradientSquare, kVariance, kMeasured, kPasses, kStepsSinceGrowth };
  double& number(Place place) { return numbers_.as<double>()[place]; }
  void grow();

  const NoisePolicy policy_;
  const int ranks_;
  Tensor numbers_;
};

}  // namespace tutti
