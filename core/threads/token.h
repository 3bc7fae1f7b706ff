#pragma once

#include <cstdint>

#include "tutti/base/sync.h"

namespace tutti {

/// Decides which thread may be the engine. At most one thread holds the token. Threads that wait
/// for their Work (drivers) come before the background thread. This is pure bookkeeping of one
/// protocol in one word, so taking the token and putting it back cost one atomic instruction each
/// while no other thread wants it.
///
/// Threads sleep and wake others under one mutex, that of Turns. Functions marked "With the mutex"
/// are called with it held. A thread that goes to sleep does not release it between the call and
/// the sleep.
///
/// Invariant: whenever no thread holds the token, a thread that can take it is awake or about to be
/// woken.
template <class Sync = Threads>
class TokenOf {
 public:
  enum class Wake { no_thread, a_driver, the_background };

  bool held() const { return (word_.load(std::memory_order_acquire) & kHeld) != 0; }
  int waiting_drivers() const {
    return static_cast<int>(word_.load(std::memory_order_acquire) / kOneDriver);
  }

  /// Returns true if the caller is the engine now. It then sees everything that the holder before
  /// it did.
  bool take() { return (word_.fetch_or(kHeld, std::memory_order_acquire) & kHeld) == 0; }
  /// Returns false if another thread may have to be woken. The caller then asks next() with the
  /// mutex.
  [[nodiscard]] bool put_back() {
    return (word_.fetch_and(~kHeld, std::memory_order_acq_rel) & ~kHeld) == 0;
  }

  /// Puts the token back only if no other thread wants it. After that the caller must not touch the
  /// engine. Returns false if it did nothing; the caller then calls put_back() and next() with the
  /// mutex.
  [[nodiscard]] bool put_back_unwanted() {
    uint32_t held = kHeld;
    return word_.compare_exchange_strong(held, 0, std::memory_order_acq_rel,
                                         std::memory_order_relaxed);
  }

  /// Takes the token for a driver. Returns false if another thread has it; the driver must then go
  /// to sleep. With the mutex.
  bool take_or_sleep() {
    auto word = word_.load(std::memory_order_relaxed);
    while (!word_.compare_exchange_weak(word,
                                        (word & kHeld) != 0 ? word + kOneDriver : word | kHeld,
                                        std::memory_order_acq_rel, std::memory_order_relaxed)) {
    }
    return (word & kHeld) == 0;
  }
  /// A driver leaves the token, which may be free, to another thread. The driver then wakes that
  /// thread and goes to sleep. With the mutex.
  void step_aside() { word_.fetch_add(kOneDriver, std::memory_order_acq_rel); }
  /// Called by a driver that returned from sleep. With the mutex.
  void driver_wakes() { word_.fetch_sub(kOneDriver, std::memory_order_acq_rel); }
  /// Takes the token for the background thread if no driver waits for it. Returns false if a driver
  /// has the token or is about to take it; the background thread must then go to sleep. With the
  /// mutex.
  bool take_in_background_or_park() {
    // kParked is not set, since only the thread that runs here sets it.
    uint32_t free = 0;
    while (!word_.compare_exchange_weak(free, free == 0 ? kHeld : free | kParked,
                                        std::memory_order_acq_rel, std::memory_order_relaxed)) {
    }
    return free == 0;
  }
  /// Called by the background thread when it returned from sleep. With the mutex.
  void background_unparks() { word_.fetch_and(~kParked, std::memory_order_acq_rel); }

  /// Returns which thread must be woken after the caller released the token or gave up waiting for
  /// it. With the mutex.
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
