#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tutti/core/agreement/coordinator.h"
#include "tutti/core/node/blocking_calls.h"
#include "tutti/core/node/outside.h"
#include "tutti/core/scheduling/scheduler.h"
#include "tutti/core/watch/liveness.h"
#include "tutti/core/watch/stall.h"

namespace tutti {

/// Watches pending operations. It decides which ranks to ping and what to report. It ends the
/// communicator if a rank is silent, if calls can never match, or if an operation takes too long.
/// It checks only while something is pending.
class Overseer {
 public:
  Overseer(const Options& options, const Context& context, Outside& outside);

  void heard(int rank, Clock::time_point when) { liveness_.heard(rank, when); }
  void left(int rank) { liveness_.left(rank); }
  void told(int rank, RankStatus status) {
    statuses_[static_cast<size_t>(rank)] = std::move(status);
  }

  /// The pending operations of this rank, which the node passes in.
  struct Pending {
    const Scheduler& scheduler;
    const Coordinator* coordinator;  // null except on rank 0
    const BlockingCalls& blocking;
    Backend& backend;
    std::function<RankStatus()> own;         // this rank's status
    std::function<std::string()> in_flight;  // see Node::in_flight()
  };
  struct Verdict {
    std::vector<int> ping;
    std::optional<Error> fault;  // an error that ends the communicator
  };
  /// Returns whether look() must be called now.
  bool is_due(Clock::time_point now) const { return now >= next_; }
  Verdict look(const Pending& pending, Clock::time_point now);
  /// Called when nothing is pending.
  void rest(Clock::time_point now);
  /// Returns the time at which look() must be called even if nothing arrives.
  Clock::time_point wake_at() const {
    return next_ == Clock::time_point::min() ? Clock::time_point::max() : next_;
  }

 private:
  RankKnowledge knowledge_of(int rank, const Pending& pending, Clock::time_point now) const;
  std::string describe_late_ranks(const std::vector<int>& ranks, const Pending& pending,
                                  Clock::time_point now) const;
  std::vector<int> ranks_behind(const Run& run) const;
  Error silence_of(const std::vector<int>& silent, const Pending& pending,
                   Clock::time_point now) const;
  std::optional<Error> find_deadlock(const Pending& pending, Clock::time_point now) const;
  std::optional<Error> what_still_never_meets(const Pending& pending, Clock::time_point now);
  std::optional<Error> what_is_overdue(const Pending& pending, Clock::time_point now);
  void report_stalls(const Pending& pending, Clock::time_point now);

  const Options& options_;
  const Context& context_;
  Outside& outside_;
  Liveness liveness_;
  StallClock stall_clock_;
  // Maps each pending name to the number of seconds that it had waited at its last report; 0: not
  // reported yet.
  std::unordered_map<std::string, double> reported_;
  std::vector<std::optional<RankStatus>> statuses_;  // status in each peer's last pong
  std::string never_meets_;  // error text about calls that seem unable to match
  Clock::time_point never_meets_since_;
  Clock::time_point next_ = Clock::time_point::min();  // next look(); min(): nothing is pending
};

}  // namespace tutti
