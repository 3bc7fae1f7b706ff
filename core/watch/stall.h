#pragma once

#include <map>
#include <string>
#include <vector>

#include "tutti/core/agreement/messages.h"
#include "tutti/core/agreement/negotiator.h"

namespace tutti {

/// What is known of a rank when a report is made.
struct RankKnowledge {
  RankStatus status;
  double quiet_seconds = 0;  // since it was heard of
};

/// One line that says for whom a name waits, since when, and the likely cause. Pure.
std::string stall_line(const Negotiator::Waiting& waiting,
                       const std::vector<Negotiator::Waiting>& all,
                       const std::vector<RankKnowledge>& ranks, Clock::time_point now);

/// Decides when a wait is reported: after `first` seconds, after 10 s, then every minute.
class StallClock {
 public:
  explicit StallClock(double first) : first_(first) {}
  /// True if a report about something that has waited `seconds` is due; `reported` is what it
  /// waited when it was reported last (0: never).
  bool due(double seconds, double reported) const { return seconds >= next(reported); }
  /// The age at which the next report is due.
  double next(double reported) const;

 private:
  const double first_;
};

}  // namespace tutti
