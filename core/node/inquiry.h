#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "tutti/backends/backend.h"
#include "tutti/base/process/process_state.h"
#include "tutti/core/scheduling/peers.h"
#include "tutti/core/watch/death.h"

namespace tutti {

/// Looks for the cause of a link that ended without a farewell. The launcher knows best how a rank
/// ended. It gets a moment to write that into the store, and this rank waits no longer than that,
/// whether the store answers or not. The peer may also have ended because of another rank; then the
/// launcher saw that rank fail first. Pure.
///
///   closed --open--> open --the record names a rank, or kLongest passed--> closed
class Inquiry {
 public:
  static constexpr Clock::duration kLongest = std::chrono::milliseconds(300);
  /// The limit if no record can be read. If the peer ended because of a third rank, this rank
  /// learns of the third rank's end only a moment after the peer did.
  static constexpr Clock::duration kLongestWithoutRecord = std::chrono::milliseconds(20);

  int peer() const { return peer_; }
  /// `seen` describes how the link ended.
  void open(int peer, const std::string& seen, Clock::time_point now);
  /// Takes the current contents of the launcher's record.
  void on_deaths(const KnownDeaths& known, const Context& context, const Peers& peers);
  /// Returns when look() is due.
  Clock::time_point next_look() const { return next_look_; }

  struct Verdict {
    int rank;         // first rank that was lost, as far as is known
    std::string how;  // "was killed by signal 9 (Killed) without closing its Communicator"
  };
  /// `peer_process` is the state that the system shows, or `runs` if this host does not see the
  /// process. Returns nothing if the cause is not known yet. A verdict closes the inquiry.
  std::optional<Verdict> look(Clock::time_point now, ProcessState peer_process);

 private:
  static constexpr Clock::duration kBetweenLooks = std::chrono::milliseconds(5);
  int peer_ = -1;    // the peer whose link ended; -1: closed
  std::string how_;  // how it ended
  int lost_ = -1;    // the rank that the record names; -1: none yet
  Clock::time_point opened_;
  Clock::time_point until_;
  Clock::time_point next_look_ = Clock::time_point::max();
};

}  // namespace tutti
