#include "tutti/adapters/sampling/shares.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "tutti/base/error.h"

namespace tutti {

namespace {

// After a trial of new shares has failed, the next trial begins only after a pause. These are the
// first and the longest pause, in windows.
constexpr int kFirstPause = 4, kLongestPause = 64;
// If steps take longer by this factor, a pause ends, because the ranks' speeds have changed.
constexpr double kOtherTimes = 1.2;

// Deals each rank its part by speed, rounded down. The remaining samples go one by one to the rank
// that would end first. Each rank gets at least one sample if there are enough.
std::vector<int64_t> deal(int64_t samples, const std::vector<double>& speeds) {
  const double all = std::accumulate(speeds.begin(), speeds.end(), 0.0);
  const int64_t least = samples >= static_cast<int64_t>(speeds.size()) ? 1 : 0;
  std::vector<int64_t> counts;
  int64_t left = samples;
  for (const double speed : speeds) {
    const auto part = static_cast<int64_t>(static_cast<double>(samples) * (speed / all));
    counts.push_back(std::max(least, part));
    left -= counts.back();
  }
  const auto end_with = [&](size_t rank, int64_t more) {
    return static_cast<double>(counts[rank] + more) / speeds[rank];
  };
  for (; left > 0; --left) {
    size_t next = 0;
    for (size_t rank = 1; rank < speeds.size(); ++rank)
      if (end_with(rank, 1) < end_with(next, 1)) next = rank;
    ++counts[next];
  }
  // The least number that each rank keeps may add up to too many samples. Then the rank that would
  // end last gives up one.
  for (; left < 0; ++left) {
    size_t last = 0;
    for (size_t rank = 1; rank < speeds.size(); ++rank)
      if (counts[rank] > least && (counts[last] <= least || end_with(rank, 0) > end_with(last, 0)))
        last = rank;
    --counts[last];
  }
  return counts;
}

// Returns the time of a step, which is that of its slowest rank.
double step_time(const std::vector<int64_t>& counts, const std::vector<double>& speeds) {
  double longest = 0;
  for (size_t rank = 0; rank < counts.size(); ++rank)
    longest = std::max(longest, static_cast<double>(counts[rank]) / speeds[rank]);
  return longest;
}

}  // namespace

SpeedShares::SpeedShares(int size, const ShareOptions& options)
    : options_(options), seconds_(static_cast<size_t>(std::max(size, 0))), pause_(kFirstPause) {
  if (size < 1 || options.samples < 0 || !(options.window >= 0) ||
      !(options.gain >= 0 && options.gain < 1))
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("shares of {} samples for {} ranks, window={} s, gain={}; expected at least 0 "
                    "samples, 1 rank, a window of at least 0 and a gain of 0 to below 1",
                    options.samples, size, options.window, options.gain));
  counts_ = deal(options.samples, std::vector<double>(seconds_.size(), 1.0));
}

StepShare SpeedShares::of(int rank) const {
  const auto begin = counts_.begin();
  return {std::accumulate(begin, begin + rank, int64_t{0}), counts_[static_cast<size_t>(rank)]};
}

void SpeedShares::add_step(std::span<const float> seconds) {
  if (!options_.follow_speed || std::exchange(is_first_, false)) return;
  for (size_t rank = 0; rank < counts_.size(); ++rank)
    if (counts_[rank] > 0 && !(seconds[rank] > 0 && std::isfinite(seconds[rank]))) return;
  for (size_t rank = 0; rank < counts_.size(); ++rank)
    seconds_[rank] += static_cast<double>(seconds[rank]);
  all_seconds_ += static_cast<double>(*std::max_element(seconds.begin(), seconds.end()));
  ++steps_;
  if (all_seconds_ < options_.window) return;

  std::vector<double> speeds;
  for (size_t rank = 0; rank < counts_.size(); ++rank)
    speeds.push_back(static_cast<double>(counts_[rank] * steps_) / seconds_[rank]);
  const double longest = all_seconds_ / static_cast<double>(steps_);
  std::fill(seconds_.begin(), seconds_.end(), 0.0);
  all_seconds_ = 0;
  steps_ = 0;
  end_window(speeds, longest);
}

void SpeedShares::end_window(const std::vector<double>& speeds, double longest) {
  if (!before_.empty()) {
    const bool is_shorter = longest < longest_before_;
    if (!is_shorter) {
      counts_ = std::exchange(before_, {});
      is_first_ = true;
      windows_to_wait_ = pause_;
      pause_ = std::min(2 * pause_, kLongestPause);
      return;
    }
    before_.clear();
    pause_ = kFirstPause;
  }
  if (windows_to_wait_ > 0 && longest <= kOtherTimes * longest_before_) {
    --windows_to_wait_;
    return;
  }
  windows_to_wait_ = 0;
  // If there are fewer samples than ranks, some ranks have no measured speed.
  if (std::find_if(speeds.begin(), speeds.end(), [](double speed) { return !(speed > 0); }) !=
      speeds.end())
    return;
  auto better = deal(options_.samples, speeds);
  if (step_time(better, speeds) > (1 - options_.gain) * step_time(counts_, speeds)) return;
  before_ = std::exchange(counts_, std::move(better));
  longest_before_ = longest;
  is_first_ = true;
}

}  // namespace tutti
