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
  /// Returns the code that a shell would return, which is 128 + the signal if a signal ended the
  /// rank.
  int exit_code() const { return signal != 0 ? 128 + signal : code; }
  /// "was killed by signal 9 (Killed)" or "ended with code 1".
  std::string text() const;
};

/// Decides what happens to a job when its ranks end; it performs no action itself. After the first
/// failure the other ranks have 3 s to notice and report it. Then they get SIGTERM, and after 2 s
/// SIGKILL, which is repeated each second. If the job is asked to end, the ranks get SIGTERM after
/// the grace time and SIGKILL 5 s later. A rank that ends with code 0 has not failed.
class Deaths {
 public:
  static constexpr double kReportSeconds = 3;
  static constexpr double kTermSeconds = 2;
  static constexpr double kKillSeconds = 1;
  static constexpr double kAskedTermSeconds = 5;

  /// If `keep_going`, the remaining ranks go on after a failure. `grace` is in seconds; 0 means no
  /// limit.
  Deaths(int ranks, bool keep_going, double grace);

  void ended(int rank, End end, Clock::time_point now);
  /// Records a rank that was not started, because the job is ending.
  void left_out(int rank);
  /// Records that a signal which asks the job to end was passed on to the ranks. The second such
  /// signal kills the ranks immediately.
  void asked_to_end(int signal, Clock::time_point now);

  /// Returns the signal to send now to all remaining ranks: SIGTERM or SIGKILL. 0: none.
  int due(Clock::time_point now);
  /// Returns when to call due() again.
  Deadline next() const;

  /// True once the ranks have been asked or ordered to end.
  bool is_ending() const { return ending_; }
  bool all_ended() const { return left_ == 0; }
  bool has_ended(int rank) const { return ends_[static_cast<size_t>(rank)].has_value(); }
  const std::optional<End>& end_of(int rank) const { return ends_[static_cast<size_t>(rank)]; }
  /// Records that a rank reported an error of its own. A rank reports it before the others learn of
  /// it and end. If this rank fails, its failure is the first one, whichever process ends first. A
  /// report after a failure is ignored, because it is about that failure's consequences.
  void erred_first(int rank);
  std::optional<int> first_failure() const;
  /// Ranks that ended well before the first failure, while others still ran; ascending.
  std::vector<int> ended_before_failure() const;
  /// Returns how many ranks failed before any rank was ordered to end.
  int failures() const { return static_cast<int>(failed_.size()); }
  /// Returns the launcher's own exit code.
  int exit_code() const;
  /// The signal that asked the job to end, or 0.
  int asked_signal() const { return asked_; }

 private:
  const bool keep_going_;
  const double grace_;
  std::vector<std::optional<End>> ends_;
  int left_;
  std::vector<int> failed_;   // ranks that failed before any rank was ordered to end
  std::optional<int> first_;  // the first rank that ended with a failure
  std::optional<int> erred_;
  std::vector<int> ended_well_;  // ranks that ended with code 0 before the first failure
  End last_;
  bool ending_ = false;
  int asked_ = 0;
  std::optional<Clock::time_point> term_at_, kill_at_;
};

}  // namespace tutti::run
