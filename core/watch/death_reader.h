#pragma once

#include <memory>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/core/watch/death.h"

namespace tutti {

/// Reads the deaths that a launcher writes into the job's store, on a thread of its own. An engine
/// uses the store through this class alone. A store may stand still with its launcher, and a store
/// of the program's own may answer late; the caller of read() waits no longer than it says. The
/// thread lives only from a call of read() to stop().
class DeathReader {
 public:
  explicit DeathReader(std::shared_ptr<Store> store);
  /// Waits for a call of the store that is under way, for kLongestWait at most. A call that takes
  /// longer goes on by itself and keeps the store alive.
  ~DeathReader();
  DeathReader(const DeathReader&) = delete;

  struct Known {
    std::vector<Death> deaths;  // in the order in which they were seen
    bool is_all = false;        // no more deaths will be known: no store or no thread
  };
  /// Makes the thread look every few milliseconds until `end`. Returns what is known after its next
  /// look, or after `patience`. One thread calls it at a time.
  Known read(Deadline end, Clock::duration patience);
  /// Makes the thread begin no further look.
  void stop();

  /// The seconds that a rank waits, at most, for what the store knows.
  static constexpr double kLongestWait = 0.3;

 private:
  struct State;
  static void look(const std::shared_ptr<State>& state, Deadline end);
  const std::shared_ptr<State> state_;
};

}  // namespace tutti
