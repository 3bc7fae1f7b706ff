#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/core/agreement/messages.h"
#include "tutti/core/agreement/negotiator.h"

namespace tutti {

/// What is known of a rank when a report is made.
struct RankKnowledge {
  std::optional<RankStatus> status;  // as it told last; nothing: it never did
  double heard_seconds = 0;          // since a message of it came; infinity: none ever did
  bool is_stopped = false;           // the system shows its process, of this host, as stopped
};

/// Where a late rank is: a sentence that calls it alive only if it was heard of within the last
/// second. Pure.
std::string describe_late_rank(int rank, const RankKnowledge& known);

/// One line that says for which ranks a name waits, since when, and the likely cause. Pure.
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
