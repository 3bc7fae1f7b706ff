#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tools/bench/report/record.h"
#include "tools/bench/report/report.h"
#include "tools/bench/workload/settings.h"
#include "tutti/core/communicator.h"

namespace tutti::bench {

/// The code to be timed.
struct Subject {
  /// Restores the initial buffers. It is not timed and may be empty.
  std::function<void()> refill;
  std::function<void(int64_t iterations)> run;
};

struct Timing {
  double median_us = 0, min_us = 0, max_us = 0;  // per iteration
  int repetitions = 0;
  int64_t iterations = 0;  // number of iterations of each repetition
  /// The number of times that the system preempted a rank during the measurement, summed over all
  /// ranks. A high count means that other programs run on this host, so the times are not reliable.
  int64_t preemptions = 0;
};

/// One rank's side of a benchmark. It has the ranks' own communicator, which is separate from the
/// measured ones, and the rules by which a time is measured. All ranks make the same calls in the
/// same order.
class Session {
 public:
  Session(Settings settings, std::unique_ptr<Communicator> control, Report& report,
          Clock::time_point started)
      : settings_(std::move(settings)),
        control_(std::move(control)),
        report_(report),
        started_(started) {}

  const Settings& settings() const { return settings_; }
  Report& report() { return report_; }
  int rank() const { return control_->rank(); }
  int size() const { return control_->size(); }
  /// Returns the point in time just before the communicator was created.
  Clock::time_point started() const { return started_; }
  Communicator& control() { return *control_; }
  /// Returns a new communicator, whose engine knows no plans or names from earlier rows. Measured
  /// operations run on such communicators. Exchanges and barriers run on control().
  std::unique_ptr<Communicator> fresh() { return control_->split(0, rank()); }

  void barrier() { control_->barrier_blocking(); }
  /// exchange() returns the values of all ranks in rank order, max() their maximum, and sum() their
  /// sum.
  std::vector<std::vector<double>> exchange(const std::vector<double>& own);
  double max(double value);
  double sum(double value);
  int64_t count(int64_t value);  // the sum over the ranks
  /// Returns rank 0's value.
  int64_t agree(int64_t value);

  /// Warms up and finds how many iterations fill a repetition; rank 0 decides for all. For each
  /// repetition it then refills, waits at a barrier and times the iterations. The time of a
  /// repetition is the mean per iteration on the slowest rank.
  Timing measure(const Subject& subject);
  /// Returns the times per iteration of `repetitions` repetitions on this rank alone, in us.
  std::vector<double> repeat(const Subject& subject, int repetitions, int64_t iterations);
  /// Returns the largest value over the ranks for each repetition.
  std::vector<double> slowest(const std::vector<double>& own);
  int64_t find_iterations(const Subject& subject);

  /// Returns a record with the fields that are the same in every row.
  Record record(Way way) const;
  void set_timing(Record& record, const Timing& timing) const;

 private:
  const Settings settings_;
  const std::unique_ptr<Communicator> control_;
  Report& report_;
  const Clock::time_point started_;
};

/// Returns the median, minimum and maximum of the repetitions' times.
Timing summarize(const std::vector<double>& times_us, int64_t iterations);

double seconds_since(Clock::time_point begin);

/// Returns how often this process was preempted since it began.
int64_t own_preemptions();

}  // namespace tutti::bench
