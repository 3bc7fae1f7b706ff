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
  int64_t count = 0;  // how many samples
};

/// Deals every step's samples to ranks of different speed, so that they end at the same time: by
/// what each rank took for its share in the steps before. What a rank could do is seen only where
/// the others wait for it: one with a quota of processor time is quick until that is used up. So
/// new shares are a trial: where the next window's steps are no shorter for it, the shares before
/// come back, and the next trial comes after twice as long a pause as the last one. Pure: no
/// message, no clock; ranks that are told the same times have the same shares. A rank keeps at
/// least one sample where there are enough. Used by one thread.
class SpeedShares {
 public:
  /// Throws Error(invalid_argument) for less than no samples or one rank, a window below 0, or a
  /// gain outside of [0, 1).
  SpeedShares(int size, const ShareOptions& options);

  const std::vector<int64_t>& counts() const { return counts_; }  // by rank
  StepShare of(int rank) const;                                   // in the step that comes next

  /// What each rank took for its share of a step, in seconds. After a window of such steps the
  /// shares may change. The first step of new shares does not count: it makes what their sizes
  /// need. Nor does a step of which a rank with samples tells no time above 0.
  void add_step(std::span<const float> seconds);

 private:
  /// Samples a second of each rank, and the mean time of the last rank of a step.
  void end_window(const std::vector<double>& speeds, double longest);

  const ShareOptions options_;
  std::vector<int64_t> counts_;
  std::vector<double> seconds_;  // of the steps of the window, by rank
  double all_seconds_ = 0;       // of them, of each step's last rank
  int64_t steps_ = 0;            // in the window
  bool is_first_ = true;         // of these shares

  std::vector<int64_t> before_;  // the shares before those on trial; empty: none are
  double longest_before_ = 0;    // how long the steps were when a trial began
  int windows_to_wait_ = 0;      // until the next trial
  int pause_;                    // how many after the next trial that fails
};

}  // namespace tutti
