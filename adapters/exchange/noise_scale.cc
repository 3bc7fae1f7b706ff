#include "tutti/adapters/exchange/noise_scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tutti/base/error.h"

namespace tutti {

void check_noise_policy(const NoisePolicy& policy, int passes, int ranks) {
  const auto want = [](bool holds, const std::string& message) {
    if (!holds) throw Error(ErrorCode::invalid_argument, "noise policy: " + message);
  };
  want(policy.batch >= 0, fmt::format("batch is {}, expected at least 0 samples", policy.batch));
  want(policy.smoothing >= 0 && policy.smoothing < 1,
       fmt::format("smoothing is {}, expected at least 0 and less than 1", policy.smoothing));
  want(policy.most_passes == 0 || policy.most_passes >= passes,
       fmt::format("most_passes is {}, expected at least backward_passes_per_step={}",
                   policy.most_passes, passes));
  want(policy.patience >= 1, fmt::format("patience is {}, expected at least 1", policy.patience));
  want(policy.most_passes == 0 || policy.batch > 0,
       fmt::format("most_passes={} excludes batch=0; without batch no noise is measured by which "
                   "batches could grow",
                   policy.most_passes));
  want(policy.batch == 0 || ranks >= 2,
       "batch excludes a single rank: noise is measured by how ranks differ, so it needs at least "
       "2");
}

std::vector<std::string> noise_settings(const NoisePolicy& policy) {
  return {fmt::format("noise.batch={}", policy.batch),
          fmt::format("noise.smoothing={}", policy.smoothing),
          fmt::format("noise.most_passes={}", policy.most_passes),
          fmt::format("noise.patience={}", policy.patience)};
}

NoiseEstimates estimate_noise(double mean_square_of_ranks, double square_of_mean, double batch,
                              int ranks) {
  const double small = batch, big = batch * ranks;
  return {(big * square_of_mean - small * mean_square_of_ranks) / (big - small),
          (mean_square_of_ranks - square_of_mean) / (1 / small - 1 / big)};
}

double sum_of_squares(const TensorView& tensor) {
  double sum = 0;
  const auto add = [&]<class T>(T) {
    const T* values = tensor.as<T>();
    for (int64_t i = 0; i < tensor.count(); ++i) {
      const auto value = static_cast<double>(values[i]);
      sum += value * value;
    }
  };
  if (tensor.dtype() == DataType::f64)
    add(double{});
  else
    add(float{});
  return sum;
}

NoiseScale::NoiseScale(const NoisePolicy& policy, int passes, int ranks)
    : policy_(policy), ranks_(ranks), numbers_(Shape{5}, DataType::f64) {
  number(kPasses) = passes;
}

void NoiseScale::add(double mean_square_of_ranks, double square_of_mean) {
  const auto batch = static_cast<double>(policy_.batch) * passes();
  const auto estimates = estimate_noise(mean_square_of_ranks, square_of_mean, batch, ranks_);
  const auto blend = [&](Place place, double latest) {
    number(place) = policy_.smoothing * number(place) + (1 - policy_.smoothing) * latest;
  };
  blend(kGradientSquare, estimates.gradient_square);
  blend(kVariance, estimates.variance);
  number(kMeasured) += 1;
  grow();
}

double NoiseScale::value() const {
  const double* numbers = numbers_.as<double>();
  if (numbers[kMeasured] == 0) return 0;
  return numbers[kGradientSquare] > 0 ? numbers[kVariance] / numbers[kGradientSquare]
                                      : std::numeric_limits<double>::infinity();
}

void NoiseScale::grow() {
  number(kStepsSinceGrowth) += 1;
  // While the gradient is lost in noise, it is not known how large a batch helps.
  if (!grows() || number(kStepsSinceGrowth) < policy_.patience || number(kGradientSquare) <= 0)
    return;
  const double wanted = value() / (static_cast<double>(policy_.batch) * ranks_);
  const int most = std::min(policy_.most_passes, 2 * passes());
  if (wanted < passes() + 1) return;
  number(kPasses) = std::min(static_cast<double>(most), std::floor(wanted));
  number(kStepsSinceGrowth) = 0;
}

}  // namespace tutti
