#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/tensor/tensor.h"

namespace tutti {

/// Measures the gradient noise scale while gradients are averaged, and lets batches grow by it.
/// Equal on all ranks. 8 bytes more a step.
struct NoisePolicy {
  /// Samples of one rank in one backward pass, whose gradient is their mean; 0: not measured.
  int64_t batch = 0;
  /// What the running means keep of themselves in a step.
  double smoothing = 0.95;
  /// The batch grows towards the noise scale, up to so many backward passes a step; 0: it does not.
  /// Gradients are then means over the passes of a step, too.
  int most_passes = 0;
  /// Steps that are measured before the batch grows, and from one growth to the next.
  int patience = 20;
};

/// Throws Error(invalid_argument) for what is out of range; `ranks` must be two at least, for the
/// noise shows in how much they differ.
void check_noise_policy(const NoisePolicy& policy, int passes, int ranks);
std::vector<std::string> noise_settings(const NoisePolicy& policy);

/// Unbiased estimates from one step of ranks with `batch` samples each (McCandlish et al. 2018,
/// appendix A): of the squared norm of the true gradient, and of the trace of the covariance of one
/// sample's gradient.
struct NoiseEstimates {
  double gradient_square = 0;
  double variance = 0;
};
NoiseEstimates estimate_noise(double mean_square_of_ranks, double square_of_mean, double batch,
                              int ranks);

/// The sum of squares of an f32 or f64 tensor in host memory.
double sum_of_squares(const TensorView& tensor);

/// Running means of both, apart, because that of their quotient would be biased; both lack the same
/// share at first, so the quotient needs no correction. What goes in is
/// equal on all ranks, so what comes out is, too.
class NoiseScale {
 public:
  NoiseScale(const NoisePolicy& policy, int passes, int ranks);

  /// A step's gradients: the mean over the ranks of the squared norm of a rank's mean gradient, and
  /// the squared norm of the mean of all.
  void add(double mean_square_of_ranks, double square_of_mean);
  /// The batch, in samples of all ranks, from which on larger ones help little: variance / squared
  /// norm; 0 before the first step, infinite where the gradient is lost in noise.
  double value() const;
  /// Backward passes of the next step. They grow only, at most to double at a time.
  int passes() const { return static_cast<int>(numbers_.as<double>()[kPasses]); }
  bool grows() const { return policy_.most_passes > 0; }
  /// f64[5], for checkpoints.
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
