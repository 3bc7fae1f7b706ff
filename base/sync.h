#pragma once

#include <sched.h>

#include <atomic>
#include <condition_variable>
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

  /// A sequentially consistent fence.
  static void fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
  /// Between two looks at what another thread will write.
  static void pause() { pause_core(); }
  /// The same, and it gives the core to another thread that is ready.
  static void yield() { ::sched_yield(); }
  static Clock::time_point now() { return Clock::now(); }
  /// The protocol says that this thread may read or write this plain data now. The explorer checks
  /// it; the shipped policy does nothing.
  static void reads(const void*) {}
  static void writes(const void*) {}
};

}  // namespace tutti
