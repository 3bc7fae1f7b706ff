#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/core/agreement/messages.h"
#include "tutti/core/agreement/negotiator.h"

namespace tutti {

/// Knowledge about a rank when a report is made.
struct RankKnowledge {
  std::optional<RankStatus> status;  // from its last pong; nothing: none arrived
  double heard_seconds = 0;          // since its last message; infinity: none arrived
  bool is_stopped = false;           // the system shows its process, of this host, as stopped
};

/// Returns a sentence about where a late rank is. It calls the rank alive only if it was heard
/// within the last second. Pure.
std::string describe_late_rank(int rank, const RankKnowledge& known);

/// Returns one line that says for which ranks a name waits, since when, and the likely cause. Pure.
std::string stall_line(const Negotiator::Waiting& waiting,
                       const std::vector<Negotiator::Waiting>& all,
                       const std::vector<RankKnowledge>& ranks, Clock::time_point now);

/// Decides when a wait is reported: after `first` seconds, after 10 s, then every minute.
class StallClock {
 public:
  explicit StallClock(double first) : first_(first) {}
  /// Returns whether a report about something that has waited for `seconds` is due. `reported` is
  /// how long it had waited at the last report (0: never).
  bool due(double seconds, double reported) const { return seconds >= next(reported); }
  /// Returns the age at which the next report is due.
  double next(double reported) const;

 private:
  const double first_;
};

}  // namespace tutti
