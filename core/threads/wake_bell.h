#pragma once

#include <chrono>

#include "tutti/base/sync.h"

namespace tutti {

/// Wakes the thread that sleeps in the engine's poller. However many threads ring it, there is only
/// one system call until the next silence().
///
/// A ringing thread first sets the flag and then rings the bell. So silence() may find the flag set
/// before the bell is rung. Therefore silence() clears the flag last. The step that cleared the
/// flag sees everything that a thread wrote before it found the flag set. A thread that has slept
/// must call slept(): a rung bell without a flag would otherwise end every later sleep early.
template <class Sync = Threads>
class WakeBellOf {
 public:
  int descriptor() const { return bell_.descriptor(); }

  /// Called by any thread after it has written data that the engine must see.
  void ring() {
    if (!is_rung_.exchange(true)) bell_.ring();
  }
  bool is_rung() const { return is_rung_; }
  /// Waits until the bell is rung or `most` has passed. Returns true if the bell is rung.
  bool wait(std::chrono::microseconds most) const { return bell_.wait(most); }

  /// Called when a thread has returned from a sleep that the bell may have ended.
  void slept() { may_be_stray_ = true; }
  /// Called by the thread that runs the engine, before it reads the data of other threads.
  void silence() {
    if (!is_rung_ && !may_be_stray_) return;
    may_be_stray_ = false;
    bell_.silence();
    is_rung_ = false;
  }

 private:
  typename Sync::Bell bell_;
  typename Sync::template Atomic<bool> is_rung_{false};
  typename Sync::template Atomic<bool> may_be_stray_{false};  // bell rung without the flag
};

using WakeBell = WakeBellOf<>;

}  // namespace tutti
