#pragma once

#include <cstdint>

#include "tutti/base/sync.h"

namespace tutti {

/// Decides which thread may run the engine. At most one thread holds the token. Threads that wait
/// for their Work (drivers) have priority over the background thread. The whole state is in one
/// atomic variable. So taking the token and putting it back cost one atomic instruction each, as
/// long as no other thread wants it.
///
/// Threads sleep and wake others under one mutex, the mutex of Turns. Functions marked "With the
/// mutex" must be called with it held. A thread that goes to sleep must not release the mutex
/// between calling such a function and its sleep.
///
/// Invariant: whenever no thread holds the token, a thread that can take it is awake or is about to
/// be woken.
template <class Sync = Threads>
class TokenOf {
 public:
  enum class Wake { no_thread, a_driver, the_background };

  bool held() const { return (word_.load(std::memory_order_acquire) & kHeld) != 0; }
  int waiting_drivers() const {
    return static_cast<int>(word_.load(std::memory_order_acquire) / kOneDriver);
  }

  /// Takes the token. Returns true if the caller may now run the engine. It then sees all writes of
  /// the previous holder.
  bool take() { return (word_.fetch_or(kHeld, std::memory_order_acquire) & kHeld) == 0; }
  /// Puts the token back. Returns false if another thread may have to be woken. The caller must
  /// then hold the mutex and call next().
  [[nodiscard]] bool put_back() {
    return (word_.fetch_and(~kHeld, std::memory_order_acq_rel) & ~kHeld) == 0;
  }

  /// Puts the token back only if no other thread wants it. If it returns true, the caller must not
  /// use the engine any more. If it returns false, it did nothing, and the caller must hold the
  /// mutex and call put_back() and next().
  [[nodiscard]] bool put_back_unwanted() {
    uint32_t held = kHeld;
    return word_.compare_exchange_strong(held, 0, std::memory_order_acq_rel,
                                         std::memory_order_relaxed);
  }

  /// Takes the token for a driver. Returns false if another thread holds it. The driver must then
  /// go to sleep. With the mutex.
  bool take_or_sleep() {
    auto word = word_.load(std::memory_order_relaxed);
    while (!word_.compare_exchange_weak(word,
                                        (word & kHeld) != 0 ? word + kOneDriver : word | kHeld,
                                        std::memory_order_acq_rel, std::memory_order_relaxed)) {
    }
    return (word & kHeld) == 0;
  }
  /// Called by a driver that leaves the token, which may be free, to another thread. The driver
  /// then wakes that thread and goes to sleep. With the mutex.
  void step_aside() { word_.fetch_add(kOneDriver, std::memory_order_acq_rel); }
  /// Called by a driver that has returned from sleep. With the mutex.
  void driver_wakes() { word_.fetch_sub(kOneDriver, std::memory_order_acq_rel); }
  /// Takes the token for the background thread if no driver waits for it. Returns false if a driver
  /// has the token or is about to take it. The background thread must then go to sleep. With the
  /// mutex.
  bool take_in_background_or_park() {
    // kParked is not set now, because only this thread sets it.
    uint32_t free = 0;
    while (!word_.compare_exchange_weak(free, free == 0 ? kHeld : free | kParked,
                                        std::memory_order_acq_rel, std::memory_order_relaxed)) {
    }
    return free == 0;
  }
  /// Called by the background thread after it has returned from sleep. With the mutex.
  void background_unparks() { word_.fetch_and(~kParked, std::memory_order_acq_rel); }

  /// Returns the thread that must be woken after the caller has released the token or given up
  /// waiting for it. With the mutex.
  Wake next() const {
    const auto word = word_.load(std::memory_order_acquire);
    if ((word & kHeld) != 0) return Wake::no_thread;
    if (word >= kOneDriver) return Wake::a_driver;
    return (word & kParked) != 0 ? Wake::the_background : Wake::no_thread;
  }

 private:
  static constexpr uint32_t kHeld = 1, kParked = 2, kOneDriver = 4;
  typename Sync::template Atomic<uint32_t> word_{0};
};

using Token = TokenOf<>;

}  // namespace tutti
