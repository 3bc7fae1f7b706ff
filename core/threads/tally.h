#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>

#include "tutti/base/sync.h"

namespace tutti {

/// Statistics that any thread may read. The thread that runs the engine (the holder of the token)
/// counts. It publishes the counts before any thread sees that a Work is done. So a thread that has
/// seen the Work done finds it counted. A blocking call is too short to publish its counts. It only
/// counts its end. A reader then makes sure that the counts are brought up to date.
template <class Counters, class Sync = Threads>
class TallyOf {
 public:
  // --- called by the holder of the token ---
  /// Counts a blocking call that completed or failed.
  void blocking_ended() {
    blocking_ends_.store(blocking_ends_.load(std::memory_order_relaxed) + 1,
                         std::memory_order_relaxed);
  }
  /// Calls `publish` if a blocking call has ended since the last publish(). A thread that may hold
  /// the token for long must call this repeatedly, because read() waits for it.
  template <class Publish>
  void catch_up(const Publish& publish) {
    Sync::reads(&published_ends_);
    if (published_ends_ != blocking_ends_.load(std::memory_order_relaxed)) publish();
  }
  /// Publishes the counts. `fill` receives the published Counters and must bring them up to date.
  template <class Fill>
  void publish(const Fill& fill) {
    const std::lock_guard lock(mutex_);
    Sync::writes(&published_ends_);
    published_ends_ = blocking_ends_.load(std::memory_order_relaxed);
    Sync::writes(&published_);
    fill(published_);
  }

  // --- by any thread ---
  /// Changes the published Counters with `change`. The `fill` of publish() must keep these changes.
  template <class Change>
  void add(const Change& change) {
    const std::lock_guard lock(mutex_);
    Sync::writes(&published_);
    change(published_);
  }
  /// Returns the counts, including every blocking call that ended before this call. `publish` must
  /// publish the counts; this function calls it while it holds the token. If another thread keeps
  /// the token for longer than kPatience (as an update function of the program may), the latest
  /// calls may be missing.
  template <class Turns, class Publish>
  Counters read(Turns& turns, const Publish& publish) {
    const auto ended = blocking_ends_.load(std::memory_order_relaxed);
    for (const auto patience = Sync::now() + kPatience;; Sync::yield()) {
      // If no thread runs the engine, this thread brings the counts up to date.
      if (turns.try_take()) {
        publish();
        turns.give();
      }
      // Another thread runs the engine. It brings the counts up to date before each of its steps.
      const std::lock_guard lock(mutex_);
      Sync::reads(&published_ends_);
      if (published_ends_ < ended && Sync::now() < patience) continue;
      Sync::reads(&published_);
      return published_;
    }
  }

 private:
  static constexpr auto kPatience = std::chrono::milliseconds(100);

  typename Sync::template Atomic<uint64_t> blocking_ends_{0};  // only the token's holder writes it
  typename Sync::Mutex mutex_;                                 // guards the members below
  Counters published_{};
  /// Value of blocking_ends_ at the last publish(). Only the holder of the token writes it. The
  /// holder reads it without the mutex.
  uint64_t published_ends_ = 0;
};

}  // namespace tutti
