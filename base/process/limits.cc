#include "tutti/base/process/limits.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <cerrno>

namespace tutti {

namespace {

std::string limit(decltype(RLIMIT_NOFILE) resource, rlim_t unit = 1) {
  rlimit value{};
  if (::getrlimit(resource, &value) != 0) return "an unknown limit";
  return value.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(value.rlim_cur / unit);
}

}  // namespace

std::string limit_advice(int error_number) {
  switch (error_number) {
    case EMFILE:
      return fmt::format("this process may have {} files open; allow more with ulimit -n",
                         limit(RLIMIT_NOFILE));
    case ENFILE:
      return "this machine has no open files left; allow more with sysctl fs.file-max";
    case EAGAIN:
      return fmt::format(
          "this user may have {} processes and threads (ulimit -u), this process {} kB of address "
          "space (ulimit -v), and a container may have fewer threads (pids.max); allow more",
          limit(RLIMIT_NPROC), limit(RLIMIT_AS, 1024));
    case ENOMEM:
      return fmt::format(
          "this process may have {} kB of address space (ulimit -v) and lock {} kB (ulimit -l), "
          "and a container may have less memory; allow more",
          limit(RLIMIT_AS, 1024), limit(RLIMIT_MEMLOCK, 1024));
    case ENOSPC:
      return "there is no space left; make some, for shared memory in /dev/shm (df /dev/shm)";
    default:
      return {};
  }
}

}  // namespace tutti
