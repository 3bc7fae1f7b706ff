#pragma once

#include <pthread.h>

#include <csignal>

namespace tutti {

/// While this object lives, SIGPIPE is blocked in this thread and in threads that it starts. So a
/// write to a connection that has ended fails with an error. Without this object the signal would
/// end the process, because Gloo does not suppress the signal.
class BrokenPipesIgnored {
 public:
  BrokenPipesIgnored() {
    sigset_t pipes;
    sigemptyset(&pipes);
    sigaddset(&pipes, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipes, &before_);
  }
  // Removes a pending SIGPIPE, so that it is not delivered later.
  ~BrokenPipesIgnored() {
    sigset_t pipes;
    sigemptyset(&pipes);
    sigaddset(&pipes, SIGPIPE);
    const timespec now{};
    if (!sigismember(&before_, SIGPIPE)) ::sigtimedwait(&pipes, nullptr, &now);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  BrokenPipesIgnored(const BrokenPipesIgnored&) = delete;
  BrokenPipesIgnored& operator=(const BrokenPipesIgnored&) = delete;

 private:
  sigset_t before_;
};

}  // namespace tutti
