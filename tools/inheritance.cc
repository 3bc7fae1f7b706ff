#include "tools/inheritance.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "tutti/base/standard_streams.h"

namespace tutti::run {

namespace {

// This state belongs to the whole process, as do the settings that it describes.
struct Inherited {
  bool ignores_hangup = false;
  mode_t umask = 0;
  rlimit descriptors{};
  bool is_settled = false;
};

Inherited& inherited() {
  static Inherited state;
  return state;
}

bool is_ignored(int number) {
  struct sigaction action {};
  return ::sigaction(number, nullptr, &action) == 0 && (action.sa_flags & SA_SIGINFO) == 0 &&
         action.sa_handler == SIG_IGN;
}

void block_nothing() {
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

}  // namespace

void settle_inheritance() {
  auto& state = inherited();
  complete_standard_streams();
  state.ignores_hangup = is_ignored(SIGHUP);
  // Only ignored signals are reset. exec leaves no handlers, so any handler is a sanitizer's.
  for (int number = 1; number < NSIG; ++number)
    if (number != SIGHUP && is_ignored(number)) ::signal(number, SIG_DFL);
  block_nothing();
  state.umask = ::umask(0);
  ::umask(state.umask & ~mode_t{S_IRWXU});
  state.is_settled = ::getrlimit(RLIMIT_NOFILE, &state.descriptors) == 0;
  auto all = state.descriptors;
  all.rlim_cur = all.rlim_max;
  if (state.is_settled) ::setrlimit(RLIMIT_NOFILE, &all);
}

bool ignores_hangup() { return inherited().ignores_hangup; }

void hand_on_inheritance() {
  const auto& state = inherited();
  if (state.is_settled) {
    ::setrlimit(RLIMIT_NOFILE, &state.descriptors);
    ::umask(state.umask);
  }
  for (int number = 1; number < NSIG; ++number)
    ::signal(number, number == SIGHUP && state.ignores_hangup ? SIG_IGN : SIG_DFL);
  block_nothing();
}

}  // namespace tutti::run
