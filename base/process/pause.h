#pragma once

namespace tutti {

/// Called between two polls of a variable that another core will write. It lets the core know that
/// this thread is waiting, so that the core's other hardware thread, if any, proceeds. It takes a
/// few tens of cycles on x86, without a call or a sleep.
inline void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace tutti
