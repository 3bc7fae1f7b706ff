#include "tests/simulation/life/locks_held.h"

#include <dlfcn.h>
#include <pthread.h>

namespace {

thread_local constinit int held = 0;

}  // namespace

namespace tutti::simulation {

int locks_held() { return held; }

}  // namespace tutti::simulation

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

// A definition in the program overrides that of the C library.
extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  using Lock = int (*)(pthread_mutex_t*);
  static constinit Lock lock = nullptr;
  if (lock == nullptr) lock = reinterpret_cast<Lock>(::dlsym(RTLD_NEXT, "pthread_mutex_lock"));
  const int result = lock(mutex);
  if (result == 0) ++held;
  return result;
}

extern "C" int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  using Unlock = int (*)(pthread_mutex_t*);
  static constinit Unlock unlock = nullptr;
  if (unlock == nullptr)
    unlock = reinterpret_cast<Unlock>(::dlsym(RTLD_NEXT, "pthread_mutex_unlock"));
  if (held > 0) --held;
  return unlock(mutex);
}

#endif
