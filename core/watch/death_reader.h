#pragma once

#include <memory>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/core/watch/death.h"

namespace tutti {

/// What an engine has of the job's store: the deaths that a launcher writes there, read by a thread
/// of their own. A store may stand still with its launcher, or be a program's that answers when it
/// likes; whoever asks here waits no longer than it says. The thread lives only from a question to
/// stop().
class DeathReader {
 public:
  explicit DeathReader(std::shared_ptr<Store> store);
  /// Waits for at most kLongestWait for a call of the store that is under way; one that takes
  /// longer goes on by itself and keeps the store.
  ~DeathReader();
  DeathReader(const DeathReader&) = delete;

  struct Known {
    std::vector<Death> deaths;  // in the order in which they were seen
    bool is_all = false;        // the store is gone: nothing more will be known
  };
  /// Has the thread look every few milliseconds until `end`, and returns what is known after its
  /// next look, or after `patience`. One thread at a time.
  Known read(Deadline end, Clock::duration patience);
  /// No look begins any more.
  void stop();

  /// So many seconds a rank waits, at most, for what the store knows.
  static constexpr double kLongestWait = 0.3;

 private:
  struct State;
  static void look(const std::shared_ptr<State>& state, Deadline end);
  const std::shared_ptr<State> state_;
};

}  // namespace tutti
