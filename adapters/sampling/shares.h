#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tutti {

/// Says how a step's samples are dealt to the ranks.
struct ShareOptions {
  int64_t samples = 0;  // number of samples of all ranks together in every step; 0: shares are not
                        // used
  bool follow_speed = false;  // false: shares are equal, or differ by one
  double window = 1;          // seconds of steps that are measured before shares may change
  double gain = 0.05;  // a change must promise to save at least this fraction of the step's time
};

/// This rank's part of a step's samples.
struct StepShare {
  int64_t first = 0;  // index of the first sample in the joined batch of all ranks
  int64_t count = 0;  // number of samples
};

/// Deals every step's samples to ranks of different speed, so that all ranks end at the same time.
/// It uses the times that the ranks took for their shares in earlier steps. These times can
/// mislead. For example, a rank with a quota of processor time is fast until the quota is used up,
/// which shows only when the others wait for it. So new shares are on trial. If the steps of the
/// next window are not shorter, the old shares come back, and the pause before the next trial is
/// twice as long as the last pause. The class sends no message and reads no clock, and ranks that
/// get the same times have the same shares. A rank keeps at least one sample if there are enough.
/// One thread uses it.
class SpeedShares {
 public:
  /// Throws Error(invalid_argument) for a negative number of samples, less than one rank, a window
  /// below 0, or a gain outside of [0, 1).
  SpeedShares(int size, const ShareOptions& options);

  const std::vector<int64_t>& counts() const { return counts_; }  // number of samples by rank
  StepShare of(int rank) const;  // the share in the step that comes next

  /// Adds the seconds that each rank took for its share of a step. After a window of such steps the
  /// shares may change. The first step with new shares is not counted, because it also prepares the
  /// trainer for the new sizes. Neither is a step in which a rank with samples reports no time
  /// above 0.
  void add_step(std::span<const float> seconds);

 private:
  /// `speeds` are samples per second of each rank, and `longest` is the mean time of the slowest
  /// rank in a step.
  void end_window(const std::vector<double>& speeds, double longest);

  const ShareOptions options_;
  std::vector<int64_t> counts_;
  std::vector<double> seconds_;  // each rank's time for the steps in the window
  double all_seconds_ = 0;       // the sum of the slowest ranks' times in the window
  int64_t steps_ = 0;            // number of steps in the window
  bool is_first_ = true;         // the next step is the first with these shares

  std::vector<int64_t> before_;  // the shares before the trial; empty if there is no trial
  double longest_before_ = 0;    // mean time of a step when the trial began
  int windows_to_wait_ = 0;      // number of windows until the next trial
  int pause_;                    // number of windows to wait after the next trial that fails
};

}  // namespace tutti
