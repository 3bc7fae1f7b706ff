#pragma once

#include <chrono>

#include "tutti/base/sync.h"

namespace tutti {

/// Wakes the thread that sleeps in the engine's poller. However many threads ring, only one system
/// call is made until the next silence().
///
/// A ringing thread sets the flag first and rings the bell then, so silence() may find a flag whose
/// bell is rung only after it. Therefore silence() clears the flag last. The step that cleared the
/// flag sees everything that a thread put down before it found the flag set. A thread that has
/// slept calls slept(), because a bell without a flag would cut short every later sleep.
template <class Sync = Threads>
class WakeBellOf {
 public:
  int descriptor() const { return bell_.descriptor(); }

  /// Called by any thread, after it has put down what the engine shall see.
  void ring() {
    if (!is_rung_.exchange(true)) bell_.ring();
  }
  bool is_rung() const { return is_rung_; }
  /// Waits until the bell is rung or `most` has passed. Returns true if it is rung.
  bool wait(std::chrono::microseconds most) const { return bell_.wait(most); }

  /// Called when a thread returned from a sleep that the bell may have ended.
  void slept() { may_be_stray_ = true; }
  /// Called by the holder of the token before it looks at what other threads have put down.
  void silence() {
    if (!is_rung_ && !may_be_stray_) return;
    may_be_stray_ = false;
    bell_.silence();
    is_rung_ = false;
  }

 private:
  typename Sync::Bell bell_;
  typename Sync::template Atomic<bool> is_rung_{false};
  typename Sync::template Atomic<bool> may_be_stray_{false};  // rung, though the flag is clear
};

using WakeBell = WakeBellOf<>;

}  // namespace tutti
