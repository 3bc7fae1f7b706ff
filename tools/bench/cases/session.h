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

/// What is to be timed.
struct Subject {
  /// Brings the buffers back to where they began; outside the timed part. May be empty.
  std::function<void()> refill;
  std::function<void(int64_t iterations)> run;
};

struct Timing {
  double median_us = 0, min_us = 0, max_us = 0;  // per iteration
  int repetitions = 0;
  int64_t iterations = 0;  // of each repetition
  /// How often the system took the core from a rank meanwhile, all ranks together. Many mean that
  /// something else runs on this host and that the times are not to be trusted.
  int64_t preemptions = 0;
};

/// One rank's side of a benchmark: the ranks' own exchange beside what is measured, and the rules
/// by which a time is taken. Every rank calls everything here at the same point.
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
  /// Before the communicator was made.
  Clock::time_point started() const { return started_; }
  Communicator& control() { return *control_; }
  /// A communicator that has seen nothing yet: what one row teaches the engine (plans, names) must
  /// not colour the next. Measured operations run on such ones, exchange and barriers on control().
  std::unique_ptr<Communicator> fresh() { return control_->split(0, rank()); }

  void barrier() { control_->barrier_blocking(); }
  /// The values of all ranks, by rank; then their maximum or sum.
  std::vector<std::vector<double>> exchange(const std::vector<double>& own);
  double max(double value);
  double sum(double value);
  int64_t count(int64_t value);  // the same for whole numbers
  /// Rank 0's.
  int64_t agree(int64_t value);

  /// Warms up, finds how many iterations fill a repetition (rank 0 decides for all), then for each
  /// repetition refills, meets the other ranks at a barrier and times the iterations. The time of a
  /// repetition is the largest over the ranks of the mean per iteration.
  Timing measure(const Subject& subject);
  /// Per-iteration times of `repetitions` repetitions on this rank alone, in us.
  std::vector<double> repeat(const Subject& subject, int repetitions, int64_t iterations);
  /// Largest over the ranks, repetition by repetition.
  std::vector<double> slowest(const std::vector<double>& own);
  int64_t find_iterations(const Subject& subject);

  /// A record with what is known of every row.
  Record record(Way way) const;
  void set_timing(Record& record, const Timing& timing) const;

 private:
  const Settings settings_;
  const std::unique_ptr<Communicator> control_;
  Report& report_;
  const Clock::time_point started_;
};

/// Median, least and largest of the repetitions' times.
Timing summarize(const std::vector<double>& times_us, int64_t iterations);

double seconds_since(Clock::time_point begin);

/// Of this process since it began.
int64_t own_preemptions();

}  // namespace tutti::bench
