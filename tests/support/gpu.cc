#include "tests/support/gpu.h"

#include <sys/wait.h>
#include <unistd.h>

#include <exception>

namespace tutti::test {

namespace {

std::string ask(const std::function<void()>& more) {
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    std::string reason;
    try {
      if (device_runtime(DeviceKind::cuda).count() == 0) reason = "CUDA shows no GPU";
      more();
    } catch (const std::exception& error) {
      reason = error.what();
    }
    const auto written = ::write(ends[1], reason.data(), reason.size());
    ::_exit(written < 0);
  }
  ::close(ends[1]);
  std::string reason;
  char buffer[512];
  for (ssize_t count; (count = ::read(ends[0], buffer, sizeof buffer)) > 0;)
    reason.append(buffer, static_cast<size_t>(count));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (status != 0 && reason.empty()) reason = "the process that looked for a GPU ended badly";
  return reason;
}

}  // namespace

std::string why_no_gpu() {
  static const std::string reason = ask([] {});
  return reason;
}
std::string why_no_gpu(const std::function<void()>& more) { return ask(more); }

}  // namespace tutti::test
