// Samples are distributed to ranks of different speed so that the ranks end at the same time.

#include "tutti/adapters/sampling/shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include "tests/support/expect_error.h"

namespace tutti {
namespace {

using Counts = std::vector<int64_t>;

// Simulates steps in which each rank takes `fixed` seconds, and its own time per sample.
void run_steps(SpeedShares& shares, const std::vector<double>& per_sample, int steps,
               double fixed = 0) {
  for (int step = 0; step < steps; ++step) {
    std::vector<float> seconds;
    for (size_t rank = 0; rank < per_sample.size(); ++rank)
      seconds.push_back(static_cast<float>(fixed + per_sample[rank] *
                                                       static_cast<double>(shares.counts()[rank])));
    shares.add_step(seconds);
  }
}

TEST(SpeedShares, AreEqualWithoutTheOption) {
  SpeedShares shares(4, {.samples = 10});
  EXPECT_EQ(shares.counts(), (Counts{3, 3, 2, 2}));
  run_steps(shares, {1, 9, 1, 1}, 100);
  EXPECT_EQ(shares.counts(), (Counts{3, 3, 2, 2}));
  EXPECT_EQ(shares.of(2).first, 6);
  EXPECT_EQ(shares.of(2).count, 2);
  EXPECT_EQ(SpeedShares(3, {.samples = 2}).counts(), (Counts{1, 1, 0}));
  EXPECT_EQ(SpeedShares(3, {}).counts(), (Counts{0, 0, 0}));
}

TEST(SpeedShares, FollowTheSpeed) {
  SpeedShares shares(2, {.samples = 12, .follow_speed = true});
  run_steps(shares, {0.1, 0.2}, 1);  // the first step also sets things up, so it does not count
  EXPECT_EQ(shares.counts(), (Counts{6, 6}));
  run_steps(shares, {0.1, 0.2}, 1);  // 1.2 s fill a window
  EXPECT_EQ(shares.counts(), (Counts{8, 4}));
  run_steps(shares, {0.1, 0.2}, 50);
  EXPECT_EQ(shares.counts(), (Counts{8, 4}));
  // Now the other rank becomes slow.
  run_steps(shares, {0.3, 0.1}, 50);
  EXPECT_EQ(shares.counts(), (Counts{3, 9}));
}

// A cgroup quota of half a core: 50 ms of every 100 ms, at full speed until they are used up. While
// the other rank has the larger share, this rank does not use up its quota and so seems to be as
// fast.
TEST(SpeedShares, FindWhatAQuotaAllows) {
  constexpr double kPerSample = 0.0002, kPeriod = 0.1, kQuota = 0.05;
  constexpr int64_t kSamples = 256;
  SpeedShares shares(2, {.samples = kSamples, .follow_speed = true, .window = 0.5});
  double now = 0, used = 0, period_end = kPeriod;
  const auto pass = [&](double until) {
    now = until;
    for (; period_end <= now; period_end += kPeriod) used = 0;
  };
  double measured = 0;
  constexpr int kSteps = 2000;
  for (int step = 0; step < kSteps; ++step) {
    const auto counts = shares.counts();
    const double begin = now, fast = kPerSample * static_cast<double>(counts[0]);
    for (double left = kPerSample * static_cast<double>(counts[1]); left > 0;) {
      const double part = std::min({left, kQuota - used, period_end - now});
      left -= part;
      used += part;
      pass(left > 0 ? period_end : now + part);
    }
    const double slow = now - begin;
    if (fast > slow) pass(begin + fast);
    shares.add_step(std::vector<float>{static_cast<float>(fast), static_cast<float>(slow)});
    if (step >= 40) measured += std::max(fast, slow);
  }
  const double ideal = kPerSample * static_cast<double>(kSamples) / 1.5;
  EXPECT_LE(measured / (kSteps - 40), 1.1 * ideal);
}

// A change that does not make steps shorter is undone. It is tried again less and less often, but
// immediately when the steps become longer.
TEST(SpeedShares, AreTakenBackWhereStepsAreNoShorter) {
  SpeedShares shares(2, {.samples = 12, .follow_speed = true, .window = 0});
  const auto step = [&](float first, float second) {
    shares.add_step(std::vector<float>{first, second});
    return shares.counts();
  };
  step(1, 2);
  const Counts equal{6, 6}, other{8, 4};
  std::vector<int> trials;
  for (int i = 0; i < 200; ++i) {
    if (shares.counts() == equal && step(1, 2) == other) trials.push_back(i);
    if (shares.counts() == equal) continue;
    step(1, 2);
    EXPECT_EQ(step(1, 2), equal);
    step(1, 2);
  }
  EXPECT_EQ(trials, (std::vector<int>{0, 5, 14, 31, 64, 129, 194}));
  EXPECT_EQ(step(1, 2), equal);
  EXPECT_EQ(step(1, 2.6F), (Counts{9, 3}));
}

TEST(SpeedShares, WaitForAWindow) {
  SpeedShares shares(2, {.samples = 12, .follow_speed = true, .window = 5});
  run_steps(shares, {0.1, 0.2}, 5);  // the last four steps count: 4.8 s
  EXPECT_EQ(shares.counts(), (Counts{6, 6}));
  run_steps(shares, {0.1, 0.2}, 1);
  EXPECT_EQ(shares.counts(), (Counts{8, 4}));
}

// A change with a small gain is not made, because new shapes have a cost too.
TEST(SpeedShares, DoNotChangeForLittle) {
  SpeedShares shares(2, {.samples = 100, .follow_speed = true, .window = 0});
  run_steps(shares, {0.1, 0.105}, 20);
  EXPECT_EQ(shares.counts(), (Counts{50, 50}));
  run_steps(shares, {0.1, 0.12}, 20);
  EXPECT_EQ(shares.counts(), (Counts{55, 45}));
}

// Random speeds: every sample is dealt, every rank gets one, and a move of one sample from the
// slowest rank to another would not make the step shorter.
TEST(SpeedShares, EndAtTheSameTime) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const int size = 1 + static_cast<int>(random() % 8);
    const auto samples = static_cast<int64_t>(size) + static_cast<int64_t>(random() % 300);
    std::vector<double> per_sample;
    for (int rank = 0; rank < size; ++rank) per_sample.push_back(0.1 + 0.01 * (random() % 100));
    SpeedShares shares(size, {.samples = samples, .follow_speed = true, .window = 0, .gain = 1e-6});
    run_steps(shares, per_sample, 20);
    const auto& counts = shares.counts();
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), samples);
    double longest = 0;
    for (size_t rank = 0; rank < counts.size(); ++rank) {
      EXPECT_GE(counts[rank], 1);
      if (counts[rank] > 1)
        longest = std::max(longest, per_sample[rank] * static_cast<double>(counts[rank]));
    }
    for (size_t rank = 0; rank < counts.size(); ++rank)
      EXPECT_GE(per_sample[rank] * static_cast<double>(counts[rank] + 1), longest * (1 - 1e-5));
  }
}

TEST(SpeedShares, StepsWithoutATimeDoNotCount) {
  SpeedShares shares(2, {.samples = 4, .follow_speed = true, .window = 0});
  run_steps(shares, {1, 3}, 1);
  for (const float bad : {0.0F, -1.0F, std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity()}) {
    shares.add_step(std::vector<float>{1, bad});
    EXPECT_EQ(shares.counts(), (Counts{2, 2})) << bad;
  }
  run_steps(shares, {1, 3}, 1);
  EXPECT_EQ(shares.counts(), (Counts{3, 1}));
  // A rank without samples has no measured speed.
  SpeedShares few(3, {.samples = 2, .follow_speed = true, .window = 0});
  run_steps(few, {1, 3, 1}, 20);
  EXPECT_EQ(few.counts(), (Counts{1, 1, 0}));
}

TEST(SpeedShares, BadInput) {
  const auto refused = [](int size, const ShareOptions& options) {
    test::expect_refused(
        "expected at least 0 samples, 1 rank, a window of at least 0 and a gain of 0 to",
        [&] { SpeedShares(size, options); });
  };
  refused(0, {.samples = 3});
  refused(2, {.samples = -1});
  refused(2, {.samples = 3, .window = -1});
  refused(2, {.samples = 3, .gain = 1});
}

}  // namespace
}  // namespace tutti
