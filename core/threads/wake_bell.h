#pragma once

#include <chrono>

#include "tutti/base/sync.h"

namespace tutti {

/// Wakes the thread that sleeps in the engine's poller. However many threads ring, one system call
/// is made until the next silence().
///
/// Between the flag and the bell two threads can pass each other: silence() may find a flag whose
/// bell is rung only after it. So silence() takes the flag down last, and what a thread told the
/// engine before it found the flag up is seen by the step that took it down; and who has slept says
/// so, because a bell without a flag would keep every sleep from then on from lasting.
template <class Sync = Threads>
class WakeBellOf {
 public:
  int descriptor() const { return bell_.descriptor(); }

  /// Any thread, after it has put down what the engine shall see.
  void ring() {
    if (!is_rung_.exchange(true)) bell_.ring();
  }
  bool is_rung() const { return is_rung_; }
  /// Until it is rung, or `most` passed. True: it is rung.
  bool wait(std::chrono::microseconds most) const { return bell_.wait(most); }

  /// A thread returned from a sleep that the bell may have ended.
  void slept() { may_be_stray_ = true; }
  /// The holder of the token, before it looks at what other threads have put down.
  void silence() {
    if (!is_rung_ && !may_be_stray_) return;
    may_be_stray_ = false;
    bell_.silence();
    is_rung_ = false;
  }

 private:
  typename Sync::Bell bell_;
  typename Sync::template Atomic<bool> is_rung_{false};
  typename Sync::template Atomic<bool> may_be_stray_{false};  // readable, though the flag is down
};

using WakeBell = WakeBellOf<>;

}  // namespace tutti
