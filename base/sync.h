#pragma once

#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <mutex>

#include "tutti/base/deadline.h"
#include "tutti/base/descriptor.h"
#include "tutti/base/process/pause.h"

namespace tutti {

/// The atomics, locks and clock that the library ships with. A protocol between threads is a
/// template whose parameter is a policy like this one. So tests can run the shipped code under
/// every order of events (tests/explore). Each member compiles to the plain call that it wraps.
struct Threads {
  template <class T>
  using Atomic = std::atomic<T>;
  using Mutex = std::mutex;
  using Condition = std::condition_variable;
  using Bell = tutti::Bell;

  /// A sequentially consistent fence. Other threads see all earlier stores of this thread before
  /// this thread reads anything after the fence.
  static void fence() {
#if defined(__SANITIZE_THREAD__)
    // tsan does not model fences, so an exchange replaces the fence. On the processor the exchange
    // acts as a fence. tsan sees a relaxed operation, which orders nothing. So tsan still reports a
    // race if a store elsewhere lacks a release.
    static std::atomic<int> word;
    word.exchange(0, std::memory_order_relaxed);
#else
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
  }
  /// Called between two polls of a variable that another thread will write.
  static void pause() { pause_core(); }
  /// Called like pause(), but lets another thread that is ready use the core.
  static void yield() { ::sched_yield(); }
  static Clock::time_point now() { return Clock::now(); }
  /// Declare that the protocol lets this thread read or write plain data now: the given number of
  /// bytes, from the given address on. The explorer checks this; the shipped policy does nothing.
  static void reads(const void*, size_t = 1) {}
  static void writes(const void*, size_t = 1) {}
};

}  // namespace tutti
