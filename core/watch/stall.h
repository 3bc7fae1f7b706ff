#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/core/agreement/messages.h"
#include "tutti/core/agreement/negotiator.h"

namespace tutti {

/// The state of a rank at the time of a report.
struct RankKnowledge {
  std::optional<RankStatus> status;  // status in its last pong; nothing: no pong arrived
  double heard_seconds = 0;          // seconds since its last message; infinity: none arrived
  bool is_stopped = false;  // its process is on this host, and the system shows it as stopped
};

/// Returns a sentence that describes the state of a late rank. It calls the rank alive only if a
/// message from it arrived within the last second. Pure.
std::string describe_late_rank(int rank, const RankKnowledge& known);

/// Returns one line about a name that waits: the ranks that are missing, how long it has waited,
/// and the likely cause. Pure.
std::string stall_line(const Negotiator::Waiting& waiting,
                       const std::vector<Negotiator::Waiting>& all,
                       const std::vector<RankKnowledge>& ranks, Clock::time_point now);

/// Decides when a wait is reported: after `first` seconds, after 10 s, then every minute.
class StallClock {
 public:
  explicit StallClock(double first) : first_(first) {}
  /// Returns whether a report is due about a wait of `seconds`. `reported` is the number of seconds
  /// that the wait had lasted at its last report (0: not reported yet).
  bool due(double seconds, double reported) const { return seconds >= next(reported); }
  /// Returns the number of seconds of waiting at which the next report is due.
  double next(double reported) const;

 private:
  const double first_;
};

}  // namespace tutti
