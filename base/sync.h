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
/// template over such a policy, so that tests run the shipped code under every order of events
/// (tests/explore). Everything here compiles to what the protocol would call without a policy.
struct Threads {
  template <class T>
  using Atomic = std::atomic<T>;
  using Mutex = std::mutex;
  using Condition = std::condition_variable;
  using Bell = tutti::Bell;

  /// A sequentially consistent fence: others see what was stored before it, before anything after
  /// it is read.
  static void fence() {
#if defined(__SANITIZE_THREAD__)
    // tsan knows no fences. The host's exchange is one, and relaxed it orders nothing in tsan's
    // eyes, which thus see a word that should have been a release and is not.
    static std::atomic<int> word;
    word.exchange(0, std::memory_order_relaxed);
#else
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
  }
  /// Between two looks at what another thread will write.
  static void pause() { pause_core(); }
  /// The same, and it gives the core to another thread that is ready.
  static void yield() { ::sched_yield(); }
  static Clock::time_point now() { return Clock::now(); }
  /// The protocol says that this thread may read or write this plain data now: so many bytes from
  /// here on. The explorer checks it; the shipped policy does nothing.
  static void reads(const void*, size_t = 1) {}
  static void writes(const void*, size_t = 1) {}
};

}  // namespace tutti
