#include "tutti/adapters/exchange/noise_scale.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>

#include "tests/adapters/exchange_trainer.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace tutti::test {
namespace {

// The gradients of samples are normal around G with covariance s^2 I, and each rank draws the mean
// of its batch. Over 10,000 steps the mean of the estimates must be within four standard
// deviations.
TEST(NoiseScale, EstimatesAreUnbiased) {
  constexpr int kDraws = 10000, kRanks = 4;
  constexpr size_t kSize = 5;
  constexpr double kBatch = 8, kDeviation = 3;
  const std::array<double, kSize> truth = {1, -2, 0.5, 0, 3};
  const double true_square = 1 + 4 + 0.25 + 0 + 9;
  const double true_variance = kDeviation * kDeviation * kSize;
  std::mt19937_64 random(20);
  std::normal_distribution<double> normal(0, kDeviation / std::sqrt(kBatch));
  struct Mean {
    double sum = 0, squares = 0;
    void add(double value) { sum += value, squares += value * value; }
    double value() const { return sum / kDraws; }
    double error() const { return std::sqrt((squares / kDraws - value() * value()) / kDraws); }
  } square, variance;
  for (int draw = 0; draw < kDraws; ++draw) {
    std::array<double, kSize> mean{};
    double mean_square = 0;
    for (int rank = 0; rank < kRanks; ++rank)
      for (size_t i = 0; i < kSize; ++i) {
        const double gradient = truth[i] + normal(random);
        mean[i] += gradient / kRanks;
        mean_square += gradient * gradient / kRanks;
      }
    double square_of_mean = 0;
    for (const double value : mean) square_of_mean += value * value;
    const auto estimates = estimate_noise(mean_square, square_of_mean, kBatch, kRanks);
    square.add(estimates.gradient_square);
    variance.add(estimates.variance);
  }
  EXPECT_NEAR(square.value(), true_square, 4 * square.error());
  EXPECT_NEAR(variance.value(), true_variance, 4 * variance.error());
  EXPECT_LT(square.error(), 0.02 * true_square);
  EXPECT_LT(variance.error(), 0.02 * true_variance);
}

// Two ranks whose gradients are w - target: distributed() must give the numbers of a direct
// computation.
TEST(NoiseScale, IsMeasuredWhileGradientsAreAveraged) {
  run_threads(2, [](Communicator& comm) {
    ExchangeTrainer trainer(comm.rank());
    auto optimizer = distributed(comm, trainer, {.noise = {.batch = 4, .smoothing = 0}});
    EXPECT_EQ(optimizer.noise_scale(), 0);
    trainer.set_gradients();
    optimizer.step();
    double mean_square = 0, square_of_mean = 0;
    for (size_t i = 0; i < 26; ++i) {
      const double a = 1 - static_cast<double>(ExchangeTrainer::target(0, i));
      const double b = 1 - static_cast<double>(ExchangeTrainer::target(1, i));
      mean_square += (a * a + b * b) / 2;
      square_of_mean += (a + b) * (a + b) / 4;
    }
    const double gradient = (8 * square_of_mean - 4 * mean_square) / (8 - 4);
    const double noise = (mean_square - square_of_mean) / (1 / 4.0 - 1 / 8.0);
    EXPECT_NEAR(optimizer.noise_scale(), noise / gradient, 1e-9);
  });
}

// A batch in one pass, or in several passes that add up, gives the same result.
TEST(NoiseScale, CountsThePassesOfAStep) {
  run_threads(2, [](Communicator& comm) {
    ExchangeTrainer trainer(comm.rank());
    const auto measured = [&](int64_t batch, int passes) {
      auto optimizer = distributed(
          comm, trainer,
          {.backward_passes_per_step = passes, .noise = {.batch = batch, .smoothing = 0}});
      trainer.set_gradients();
      for (auto& param : trainer.parameters())
        for (float& value : param.gradient.span<float>()) value *= static_cast<float>(passes);
      optimizer.synchronize();
      return optimizer.noise_scale();
    };
    EXPECT_DOUBLE_EQ(measured(12, 1), measured(4, 3));
  });
}

TEST(NoiseScale, BatchesGrowByItAndNoFurther) {
  NoiseScale noise({.batch = 10, .smoothing = 0, .most_passes = 6, .patience = 2}, 1, 2);
  // With variance 1600 and a squared norm of 10, the noise scale is 160 samples: 8 times 2 x 10.
  const auto step = [&] {
    const double batch = 10.0 * noise.passes();
    noise.add(10 + 1600 / batch, 10 + 1600 / (2 * batch));
    EXPECT_NEAR(noise.value(), 160, 1e-9);
    return noise.passes();
  };
  EXPECT_EQ(step(), 1);
  EXPECT_EQ(step(), 2);
  EXPECT_EQ(step(), 2);
  EXPECT_EQ(step(), 4);
  EXPECT_EQ(step(), 4);
  EXPECT_EQ(step(), 6);
  EXPECT_EQ(step(), 6);
}

// A step of several passes averages them, so it is as long as a step of one pass.
TEST(NoiseScale, GrownStepsAverageTheirPasses) {
  run_threads(2, [](Communicator& comm) {
    ExchangeTrainer trainer(comm.rank());
    // The ranks' gradients differ so much that the noise outweighs the mean, so batches grow
    // immediately.
    auto optimizer = distributed(
        comm, trainer, {.noise = {.batch = 1, .smoothing = 0, .most_passes = 4, .patience = 1}});
    const auto set = [&](float times) {
      for (auto& param : trainer.parameters())
        for (float& value : param.gradient.span<float>())
          value = times * (comm.rank() == 0 ? 5.0F : -3.0F);
    };
    set(1);
    optimizer.step();  // the mean gradient is 1
    EXPECT_EQ(trainer.values()[0], 0.5F);
    // The mean squares are 17 and 1 per element. The estimate for the gradient is negative, so the
    // noise scale is unknown.
    EXPECT_EQ(optimizer.backward_passes_per_step(), 1);
    for (auto& param : trainer.parameters())
      for (float& value : param.gradient.span<float>()) value = comm.rank() == 0 ? 5.0F : 0.25F;
    optimizer.step();
    EXPECT_EQ(optimizer.backward_passes_per_step(), 2);
    const float before = trainer.values()[0];
    set(2);  // the sum of two passes
    optimizer.step();
    EXPECT_EQ(trainer.values()[0], before - 0.5F);
  });
}

TEST(NoiseScaleBadInput, IsRefused) {
  run_threads(2, [](Communicator& comm) {
    ExchangeTrainer trainer(comm.rank());
    const auto refused = [&](const DistributedOptions& options, const char* what) {
      expect_error(ErrorCode::invalid_argument, what, [&] { distributed(comm, trainer, options); });
    };
    refused({.exchange = local_sgd(2), .noise = {.batch = 4}},
            "noise policy: batch excludes what=parameters");
    refused({.exchange = adasum_of_gradients(), .noise = {.batch = 4}}, "adasum");
    refused({.op = ReduceOp::sum, .noise = {.batch = 4}}, "op=sum");
    refused({.noise = {.most_passes = 4}}, "batch=0");
    refused({.noise = {.batch = 4, .smoothing = 1}}, "smoothing is 1");
    refused({.backward_passes_per_step = 4, .noise = {.batch = 4, .most_passes = 2}},
            "most_passes is 2");
  });
  run_threads(1, [](Communicator& comm) {
    ExchangeTrainer trainer(0);
    EXPECT_THAT(error_of([&] { distributed(comm, trainer, {.noise = {.batch = 4}}); }).what(),
                testing::HasSubstr("noise policy: batch excludes a single rank"));
  });
}

}  // namespace
}  // namespace tutti::test
