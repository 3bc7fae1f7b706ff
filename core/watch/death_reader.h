#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "tutti/base/deadline.h"
#include "tutti/core/watch/death.h"

namespace tutti {

/// Reads the deaths that a launcher writes into the job's store, on a thread of its own. An engine
/// uses the store through this class alone, so it never waits for a store that stopped with its
/// launcher or answers late. The thread lives only from begin() to stop().
class DeathReader {
 public:
  explicit DeathReader(std::shared_ptr<Store> store);
  /// Waits for a call of the store that is under way, for kLongestWait at most. A call that takes
  /// longer goes on by itself and keeps the store alive.
  ~DeathReader();
  DeathReader(const DeathReader&) = delete;

  /// Sets a function that the thread calls after each look, but never after the destructor.
  void on_news(std::function<void()> call);
  /// Makes the thread look every few milliseconds until `end`, if it does not look already. Never
  /// waits. Only one thread at a time may call this and news().
  void begin(Deadline end);
  /// Returns all known deaths if a look has ended since the last call, else nothing.
  std::optional<KnownDeaths> news();
  /// Makes the thread begin no further look.
  void stop();

  /// The longest time, in seconds, that a rank waits for the store.
  static constexpr double kLongestWait = 0.3;

 private:
  struct State;
  static void look(const std::shared_ptr<State>& state, Deadline end);
  const std::shared_ptr<State> state_;
};

}  // namespace tutti
