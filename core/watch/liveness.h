#pragma once

#include <vector>

#include "tutti/base/deadline.h"

namespace tutti {

/// Decides which ranks to ask whether they are alive, and which are silent. Probes run only while
/// something is pending. Pure: time comes in as a value.
class Liveness {
 public:
  /// Ranks that are waited for are asked every `interval` seconds, twice a second at least.
  Liveness(int rank, int size, double peer_timeout, double interval = kInterval);

  void heard(int peer, Clock::time_point when);
  /// It closed, or is known to be dead: it is asked no more, and not called silent.
  void left(int peer) { left_[static_cast<size_t>(peer)] = true; }
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
  /// Seconds since a message of this peer came; infinity: none ever did.
  double seconds_since_heard(int peer, Clock::time_point now) const;

  /// A rank is called alive if it was heard of within so many seconds.
  static constexpr double kEvidence = 1;

 private:
  static constexpr double kInterval = 0.5;
  void start(Clock::time_point now);
  const int rank_;
  const Clock::duration timeout_;
  const Clock::duration interval_;
  const Clock::duration gap_;
  bool probing_ = false;
  Clock::time_point last_tick_;
  Clock::time_point next_ping_;
  std::vector<Clock::time_point> quiet_since_;  // heard of, or not yet waited for
  std::vector<Clock::time_point> heard_;        // the epoch: never
  std::vector<bool> left_;
};

}  // namespace tutti
