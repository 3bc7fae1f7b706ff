#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tutti {

/// How a step's samples are dealt to the ranks.
struct ShareOptions {
  int64_t samples = 0;        // of all ranks together, in every step; 0: shares are not asked for
  bool follow_speed = false;  // otherwise shares are equal, or differ by one
  double window = 1;          // seconds of steps that are measured before shares may change
  double gain = 0.05;         // how much of the step's time a change must promise to save
};

/// This rank's part of a step's samples.
struct StepShare {
  int64_t first = 0;  // where it begins in the joined batch of all ranks
  int64_t count = 0;
};

/// Deals every step's samples to ranks of different speed, so that they end at the same time: by
/// what each rank took for its share in the steps before. Pure: no message, no clock; ranks that
/// are told the same times have the same shares. A rank keeps at least one sample where there are
/// enough. Used by one thread.
class SpeedShares {
 public:
  /// Throws Error(invalid_argument) for less than no samples or one rank, a window below 0, or a
  /// gain outside of [0, 1).
  SpeedShares(int size, const ShareOptions& options);

  const std::vector<int64_t>& counts() const { return counts_; }  // by rank
  StepShare of(int rank) const;

  /// What each rank took for its share of a step, in seconds. After a window of such steps the
  /// shares may change. The first step of new shares does not count: it makes what their sizes
  /// need. Nor does a step of which a rank with samples tells no time above 0.
  void add_step(std::span<const float> seconds);

 private:
  const ShareOptions options_;
  std::vector<int64_t> counts_;
  std::vector<double> seconds_;  // of the steps of the window, by rank
  int64_t steps_ = 0;            // in the window
  bool is_first_ = true;         // of these shares
};

}  // namespace tutti
