#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "tutti/backends/backend.h"
#include "tutti/base/process/process_state.h"
#include "tutti/core/scheduling/peers.h"
#include "tutti/core/watch/death.h"

namespace tutti {

/// Looks for the cause of a link that ended without a farewell (the message of a rank that leaves).
/// The launcher knows best how a rank ended. This rank gives it a short time to write that into the
/// store, whether the store answers or not. If the peer ended because of another rank, the launcher
/// saw the other rank fail first. Pure.
///
///   closed --open--> open --the record names a rank, or kLongest passed--> closed
class Inquiry {
 public:
  static constexpr Clock::duration kLongest = std::chrono::milliseconds(300);
  /// The time limit if no record can be read. A peer that ended because of a third rank noticed
  /// that rank's end slightly earlier than this rank does.
  static constexpr Clock::duration kLongestWithoutRecord = std::chrono::milliseconds(20);

  int peer() const { return peer_; }
  /// Begins an inquiry about `peer`. `seen` is a text about how the link ended.
  void open(int peer, const std::string& seen, Clock::time_point now);
  /// Takes the current contents of the launcher's record of deaths.
  void on_deaths(const KnownDeaths& known, const Context& context, const Peers& peers);
  /// Returns the time at which look() must be called.
  Clock::time_point next_look() const { return next_look_; }

  struct Verdict {
    int rank;         // first rank that was lost, as far as is known
    std::string how;  // "was killed by signal 9 (Killed) without closing its Communicator"
  };
  /// Returns the cause and ends the inquiry, or returns nothing if the cause is not known yet.
  /// `peer_process` is the state of the peer's process as the system shows it, or `runs` if this
  /// host cannot see the process.
  std::optional<Verdict> look(Clock::time_point now, ProcessState peer_process);

 private:
  static constexpr Clock::duration kBetweenLooks = std::chrono::milliseconds(5);
  int peer_ = -1;    // the peer whose link ended; -1: closed
  std::string how_;  // text about how the peer's link or the lost rank ended
  int lost_ = -1;    // the rank that the record names; -1: none yet
  Clock::time_point opened_;
  Clock::time_point until_;
  Clock::time_point next_look_ = Clock::time_point::max();
};

}  // namespace tutti
