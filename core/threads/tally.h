#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>

#include "tutti/base/sync.h"

namespace tutti {

/// Numbers that the holder of the token counts, and that any thread may read. The holder publishes
/// them before any thread sees that a Work is done, so that whoever has seen it finds it counted. A
/// blocking call publishes nothing, for it takes less time than that: it counts itself as over, and
/// a reader sees to it that the numbers are brought up to date.
template <class Counters, class Sync = Threads>
class TallyOf {
 public:
  // --- by the holder of the token ---
  /// A blocking call is over, well or not.
  void blocking_ended() {
    blocking_ends_.store(blocking_ends_.load(std::memory_order_relaxed) + 1,
                         std::memory_order_relaxed);
  }
  /// Calls `publish` if a blocking call is over that is not published. A thread that may hold the
  /// token for long calls this again and again, as read() waits for it.
  template <class Publish>
  void catch_up(const Publish& publish) {
    Sync::reads(&published_ends_);
    if (published_ends_ != blocking_ends_.load(std::memory_order_relaxed)) publish();
  }
  /// `fill` brings the Counters that it gets up to date.
  template <class Fill>
  void publish(const Fill& fill) {
    const std::lock_guard lock(mutex_);
    Sync::writes(&published_ends_);
    published_ends_ = blocking_ends_.load(std::memory_order_relaxed);
    Sync::writes(&published_);
    fill(published_);
  }

  // --- by any thread ---
  /// `change` gets the Counters. publish() keeps what others than the holder of the token count.
  template <class Change>
  void add(const Change& change) {
    const std::lock_guard lock(mutex_);
    Sync::writes(&published_);
    change(published_);
  }
  /// The numbers, with every blocking call that was over before. `publish` publishes them, with the
  /// token. A thread that keeps the token for longer than kPatience, as an update of the program's
  /// may, is not waited for.
  template <class Turns, class Publish>
  Counters read(Turns& turns, const Publish& publish) {
    const auto ended = blocking_ends_.load(std::memory_order_relaxed);
    for (const auto patience = Sync::now() + kPatience;; Sync::yield()) {
      // Where no thread drives, the numbers are brought up to date here.
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
  /// blocking_ends_ at that time. The holder of the token alone writes it, and reads it without the
  /// mutex.
  uint64_t published_ends_ = 0;
};

}  // namespace tutti
