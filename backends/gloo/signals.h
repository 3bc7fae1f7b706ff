#pragma once

#include <pthread.h>

#include <csignal>

namespace tutti {

/// While it lives, writing to a connection that has ended is an error for this thread and the
/// threads that it starts. Without it the write would raise a signal that ends the process, since
/// Gloo does not ask for errors.
class BrokenPipesIgnored {
 public:
  BrokenPipesIgnored() {
    sigset_t pipes;
    sigemptyset(&pipes);
    sigaddset(&pipes, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipes, &before_);
  }
  // Discards a pending SIGPIPE, so that it is not delivered later.
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
