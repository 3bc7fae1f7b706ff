#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "benchmarks/common/flags.h"

namespace tutti::benchmarks {

/// Options of a measurement.
struct Method {
  int repetitions = 5;
  double repetition_ms = 20;
  int warmup = 2;  // calls
  /// No further repetition begins once all repetitions together took this time.
  double cell_ms = 2000;
};

/// Returns the options that the flags give.
inline Method method_of(const Flags& flags) {
  return {flags.whole("repetitions"), flags.number("repetition-ms"), flags.whole("warmup"),
          flags.number("cell-ms")};
}

struct Timing {
  double median_us = 0, min_us = 0, max_us = 0;  // per call
  int repetitions = 0;
  int64_t iterations = 0;  // calls of a repetition
};

inline double now_us() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Returns the median of values in any order. `values` must not be empty.
inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 != 0) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

/// Returns after how many calls f32 values that began below 2^7 are still finite. Each call of a
/// sum in place multiplies them by the number of ranks.
inline int64_t calls_before_overflow(int ranks) {
  return std::max<int64_t>(1, static_cast<int64_t>(119 / std::log2(std::max(2, ranks))));
}
inline constexpr int64_t kNeverOverflows = std::numeric_limits<int64_t>::max();

/// Times repetitions of k calls each. A repetition's time is the mean of its calls on the slowest
/// rank, after a barrier. It lasts about `repetition_ms`. Every `calls_per_fill` calls `fill`
/// writes the data again, outside the timed part. A Team has barrier() and max(double). All ranks
/// make this call together.
template <class Team, class Fill, class Run>
Timing measure(Team& team, const Method& method, int64_t calls_per_fill, Fill fill, Run run) {
  const auto repetition = [&](int64_t iterations) {
    fill();
    team.barrier();
    double elapsed = 0;
    for (int64_t done = 0; done < iterations;) {
      const auto batch = std::min(calls_per_fill, iterations - done);
      const double begin = now_us();
      for (int64_t i = 0; i < batch; ++i) run();
      elapsed += now_us() - begin;
      done += batch;
      if (done < iterations) fill();
    }
    return team.max(elapsed / static_cast<double>(iterations));
  };

  for (int i = 0; i < method.warmup; ++i) repetition(1);
  const double wanted_us = method.repetition_ms * 1000;
  int64_t iterations = 1;
  for (double each = repetition(1); iterations < 1'000'000;) {
    const double fitting = wanted_us / std::max(each, 0.01);
    if (fitting < 2.0 * static_cast<double>(iterations)) {
      iterations = std::max<int64_t>(1, static_cast<int64_t>(fitting));
      break;
    }
    // One call does not predict the time of many, so the number grows by at most ten times per
    // step.
    iterations = std::min(static_cast<int64_t>(fitting), iterations * 10);
    each = std::min(repetition(iterations), repetition(iterations));  // one may be disturbed
  }

  std::vector<double> times;
  double spent_us = 0;
  while (static_cast<int>(times.size()) < method.repetitions && spent_us < method.cell_ms * 1000) {
    times.push_back(repetition(iterations));
    spent_us += times.back() * static_cast<double>(iterations);
  }
  const auto [least, most] = std::minmax_element(times.begin(), times.end());
  return {median(times), *least, *most, static_cast<int>(times.size()), iterations};
}

/// Binds this process to a core, which it has alone if there are enough cores.
inline void bind_to_core(int rank) {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  if (::sched_getaffinity(0, sizeof usable, &usable) != 0) return;
  int skip = rank % CPU_COUNT(&usable);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &usable) || skip-- > 0) continue;
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(core, &own);
    ::sched_setaffinity(0, sizeof own, &own);
    return;
  }
}

}  // namespace tutti::benchmarks
