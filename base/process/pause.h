#pragma once

namespace tutti {

/// Called between two polls of a variable that another core will write. The core then knows that
/// this thread is waiting, and gives its resources to its other hardware thread, if any. The call
/// takes a few tens of cycles on x86, without a call or a sleep.
inline void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace tutti
