#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/core/watch/death.h"

namespace tutti {

/// Reads the deaths that launchers write into the job's store, on a separate thread. An engine
/// accesses the store only through this class. So it never waits for a store that ended with its
/// launcher or answers late. The thread exists only from begin() to stop().
class DeathReader {
 public:
  explicit DeathReader(std::shared_ptr<Store> store);
  /// If a call of the store is in progress, waits for it, for at most kLongestWait. A call that
  /// takes longer goes on by itself and keeps the store alive.
  ~DeathReader();
  DeathReader(const DeathReader&) = delete;

  /// Sets a function that the thread calls after each read, but never after the destructor.
  void on_news(std::function<void()> call);
  /// Makes the thread read every few milliseconds until `end`, unless it already does. Never
  /// blocks. Only one thread at a time may call begin() and news().
  void begin(Deadline end);
  /// Returns all known deaths if a read has ended since the last call, else nothing.
  std::optional<KnownDeaths> news();
  /// Makes the thread stop after its current read.
  void stop();

  /// The longest time, in seconds, that a rank waits for the store.
  static constexpr double kLongestWait = 0.3;

 private:
  struct State;
  static void look(const std::shared_ptr<State>& state, Deadline end);
  const std::shared_ptr<State> state_;
};

}  // namespace tutti
