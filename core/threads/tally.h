#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>

#include "tutti/base/sync.h"

namespace tutti {

/// Statistics that the holder of the token counts and any thread may read. The holder publishes
/// them before any thread sees that a Work is done, so a thread that has seen it finds the Work
/// counted. A blocking call is too short to publish anything. It only counts itself as over, and a
/// reader then has the numbers brought up to date.
template <class Counters, class Sync = Threads>
class TallyOf {
 public:
  // --- by the holder of the token ---
  /// Counts a blocking call that completed or failed.
  void blocking_ended() {
    blocking_ends_.store(blocking_ends_.load(std::memory_order_relaxed) + 1,
                         std::memory_order_relaxed);
  }
  /// Calls `publish` if a blocking call is over that is not published. A thread that may hold the
  /// token for long calls this again and again, since read() waits for it.
  template <class Publish>
  void catch_up(const Publish& publish) {
    Sync::reads(&published_ends_);
    if (published_ends_ != blocking_ends_.load(std::memory_order_relaxed)) publish();
  }
  /// Publishes the numbers. `fill` brings the Counters that it gets up to date.
  template <class Fill>
  void publish(const Fill& fill) {
    const std::lock_guard lock(mutex_);
    Sync::writes(&published_ends_);
    published_ends_ = blocking_ends_.load(std::memory_order_relaxed);
    Sync::writes(&published_);
    fill(published_);
  }

  // --- by any thread ---
  /// Lets `change` modify the published Counters. The `fill` of publish() must keep these changes.
  template <class Change>
  void add(const Change& change) {
    const std::lock_guard lock(mutex_);
    Sync::writes(&published_);
    change(published_);
  }
  /// Returns the numbers, including every blocking call that was over before this call. `publish`
  /// publishes them and is called with the token. If another thread keeps the token for longer than
  /// kPatience, as an update of the program may, the numbers may lack the latest calls.
  template <class Turns, class Publish>
  Counters read(Turns& turns, const Publish& publish) {
    const auto ended = blocking_ends_.load(std::memory_order_relaxed);
    for (const auto patience = Sync::now() + kPatience;; Sync::yield()) {
      // If no thread drives, this thread brings the numbers up to date.
      if (turns.try_take()) {
        publish();
        turns.give();
      }
      // A thread that drives does so before each of its steps.
      const std::lock_guard lock(mutex_);
      Sync::reads(&published_ends_);
      if (published_ends_ < ended && Sync::now() < patience) continue;
      Sync::reads(&published_);
      return published_;
    }
  }

 private:
  static constexpr auto kPatience = std::chrono::milliseconds(100);

  typename Sync::template Atomic<uint64_t> blocking_ends_{0};  // the token's holder alone writes it
  typename Sync::Mutex mutex_;                                 // guards the following
  Counters published_{};
  /// Value of blocking_ends_ at the last publish(). Only the holder of the token writes it, and the
  /// holder reads it without the mutex.
  uint64_t published_ends_ = 0;
};

}  // namespace tutti
