#pragma once

#include <cstdint>

#include "tutti/base/sync.h"

namespace tutti {

/// Which thread may be the engine: at most one holds the token; threads that wait for their Work
/// (drivers) come before the background thread. Pure bookkeeping of one protocol, in one word, so
/// that taking the token and putting it back cost one atomic instruction each while no other thread
/// wants it. A thread sleeps, and wakes others, under one mutex, that of Turns: it calls what is
/// marked "with the mutex" with that mutex held, and sleeps without letting go of it in between.
/// The promise: whenever no thread holds the token, a thread that can take it is awake or about to
/// be woken.
template <class Sync = Threads>
class TokenOf {
 public:
  enum class Wake { no_thread, a_driver, the_background };

  bool held() const { return (word_.load(std::memory_order_acquire) & kHeld) != 0; }
  int waiting_drivers() const {
    return static_cast<int>(word_.load(std::memory_order_acquire) / kOneDriver);
  }

  /// True: the caller is the engine now, and sees all that the holder before it did.
  bool take() { return (word_.fetch_or(kHeld, std::memory_order_acquire) & kHeld) == 0; }
  /// False: another thread may have to be woken; ask next() under the mutex.
  [[nodiscard]] bool put_back() {
    return (word_.fetch_and(~kHeld, std::memory_order_acq_rel) & ~kHeld) == 0;
  }

  /// The same if no other thread wants it; the caller touches the engine no more then. False:
  /// nothing was done; put it back with the mutex, and ask next().
  [[nodiscard]] bool put_back_unwanted() {
    uint32_t held = kHeld;
    return word_.compare_exchange_strong(held, 0, std::memory_order_acq_rel,
                                         std::memory_order_relaxed);
  }

  /// False: a driver did not get it and goes to sleep. With the mutex.
  bool take_or_sleep() {
    auto word = word_.load(std::memory_order_relaxed);
    while (!word_.compare_exchange_weak(word,
                                        (word & kHeld) != 0 ? word + kOneDriver : word | kHeld,
                                        std::memory_order_acq_rel, std::memory_order_relaxed)) {
    }
    return (word & kHeld) == 0;
  }
  /// A driver leaves the token, which may be free, to another thread that is woken for it, and goes
  /// to sleep. With the mutex.
  void step_aside() { word_.fetch_add(kOneDriver, std::memory_order_acq_rel); }
  /// A driver returned from sleep. With the mutex.
  void driver_wakes() { word_.fetch_sub(kOneDriver, std::memory_order_acq_rel); }
  /// The background thread takes it only if no driver waits for it. False: it goes to sleep,
  /// because a driver has the token or is about to take it. With the mutex.
  bool take_in_background_or_park() {
    // kParked is not set: the only thread that sets it is the one that runs here.
    uint32_t free = 0;
    while (!word_.compare_exchange_weak(free, free == 0 ? kHeld : free | kParked,
                                        std::memory_order_acq_rel, std::memory_order_relaxed)) {
    }
    return free == 0;
  }
  /// With the mutex.
  void background_unparks() { word_.fetch_and(~kParked, std::memory_order_acq_rel); }

  /// Which thread one that is done with the token, or with waiting for it, must wake. With the
  /// mutex.
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
