#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tutti/base/deadline.h"

namespace tutti::run {

/// How a rank's process ended.
struct End {
  int code = 0;
  int signal = 0;  // 0: it exited
  bool failed() const { return code != 0 || signal != 0; }
  /// As a shell would tell it: 128 + the signal.
  int exit_code() const { return signal != 0 ? 128 + signal : code; }
  /// "was killed by signal 9 (Killed)" or "ended with code 1".
  std::string text() const;
};

/// Decides, without doing anything itself, what becomes of a job whose ranks end: the first failure
/// gives the others 3 s to notice and say so themselves, then SIGTERM, then 2 s until SIGKILL,
/// which is repeated each second. A job that is asked to end has its grace until SIGTERM, then 5 s
/// until SIGKILL. A rank that ends with 0 is no failure.
class Deaths {
 public:
  static constexpr double kReportSeconds = 3;
  static constexpr double kTermSeconds = 2;
  static constexpr double kKillSeconds = 1;
  static constexpr double kAskedTermSeconds = 5;

  /// `keep_going`: ranks that are left go on after a failure. `grace`: seconds; 0: without end.
  Deaths(int ranks, bool keep_going, double grace);

  void ended(int rank, End end, Clock::time_point now);
  /// It was not started, because the job is ending.
  void left_out(int rank);
  /// A signal that asks the job to end was passed on to the ranks. The second one ends them at
  /// once.
  void asked_to_end(int signal, Clock::time_point now);

  /// The signal that is due for all ranks that are left: SIGTERM or SIGKILL; 0: none.
  int due(Clock::time_point now);
  /// When to ask again.
  Deadline next() const;

  /// True from when the ranks are told to end.
  bool is_ending() const { return ending_; }
  bool all_ended() const { return left_ == 0; }
  bool has_ended(int rank) const { return ends_[static_cast<size_t>(rank)].has_value(); }
  const std::optional<End>& end_of(int rank) const { return ends_[static_cast<size_t>(rank)]; }
  /// A rank said that it closes because of an error of its own, which it does before the others
  /// hear of it and end: if it fails, that was the first failure, whichever process ends first.
  /// What is said after a failure is about that one's consequences, and ignored.
  void erred_first(int rank);
  std::optional<int> first_failure() const;
  /// Ranks that ended well before the first failure, while others still ran; ascending.
  std::vector<int> ended_before_failure() const;
  /// How many failed before any was told to end.
  int failures() const { return static_cast<int>(failed_.size()); }
  /// What the launcher itself ends with.
  int exit_code() const;
  /// The signal that asked the job to end, or 0.
  int asked_signal() const { return asked_; }

 private:
  const bool keep_going_;
  const double grace_;
  std::vector<std::optional<End>> ends_;
  int left_;
  std::vector<int> failed_;   // before any was told to end
  std::optional<int> first_;  // that ended and failed
  std::optional<int> erred_;
  std::vector<int> ended_well_;  // until the first failure
  End last_;
  bool ending_ = false;
  int asked_ = 0;
  std::optional<Clock::time_point> term_at_, kill_at_;
};

}  // namespace tutti::run
