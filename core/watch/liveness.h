#pragma once

#include <vector>

#include "tutti/base/deadline.h"

namespace tutti {

/// Decides which ranks to ask whether they are alive, and which are silent. Probes run only while
/// something is pending. Pure: time comes in as a value.
class Liveness {
 public:
  Liveness(int rank, int size, double peer_timeout);

  void heard(int peer, Clock::time_point when);
  struct Result {
    std::vector<int> ping;
    /// Once a peer did not answer within peer_timeout: it and all that were quiet for half of that,
    /// longest first. A rank that nothing reaches any more finds several, one of them the cause.
    std::vector<int> silent;
    Clock::time_point next = Clock::time_point::max();
  };
  Result tick(Clock::time_point now, bool pending);
  /// Seconds since this peer was heard of while something was pending; 0 otherwise.
  double quiet_seconds(int peer, Clock::time_point now) const;

 private:
  void start(Clock::time_point now);
  const int rank_;
  const Clock::duration timeout_;
  const Clock::duration interval_;
  bool probing_ = false;
  Clock::time_point last_tick_;
  Clock::time_point next_ping_;
  std::vector<Clock::time_point> heard_;
};

}  // namespace tutti
