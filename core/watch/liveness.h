#pragma once

#include <vector>

#include "tutti/base/deadline.h"

namespace tutti {

/// Decides which ranks to ping and which ranks are silent. Pings are sent only while something is
/// pending. Pure: the time is an argument.
class Liveness {
 public:
  /// Peers are pinged at least every `interval` seconds, and at least twice a second.
  Liveness(int rank, int size, double peer_timeout, double interval = kInterval);

  void heard(int peer, Clock::time_point when);
  /// Records that the peer closed or is known to be dead. It is not pinged any more and never
  /// counts as silent.
  void left(int peer) { left_[static_cast<size_t>(peer)] = true; }
  struct Result {
    std::vector<int> ping;
    /// Set if a peer did not answer within peer_timeout. It lists that peer and all peers that were
    /// quiet for at least half of peer_timeout, the longest first. If messages of several peers do
    /// not arrive any more, one of these peers is the cause.
    std::vector<int> silent;
    Clock::time_point next = Clock::time_point::max();
  };
  Result tick(Clock::time_point now, bool pending);
  /// Returns the seconds since this peer's last message. Only time in which something is pending
  /// counts.
  double quiet_seconds(int peer, Clock::time_point now) const;
  /// Returns the seconds since this peer's last message, or infinity if none has arrived.
  double seconds_since_heard(int peer, Clock::time_point now) const;

  /// A rank counts as alive if a message from it arrived within this many seconds.
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
  // For each peer: time of its last message, or of the start of the wait if that is later.
  std::vector<Clock::time_point> quiet_since_;
  std::vector<Clock::time_point> heard_;  // time of the last message; time_point(): none
  std::vector<bool> left_;
};

}  // namespace tutti
