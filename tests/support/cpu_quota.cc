#include "tests/support/cpu_quota.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <stdexcept>

namespace tutti::test {
namespace {

constexpr int kPeriod = 100'000;  // us

// Returns where the cpu controller is mounted. cgroup v1 has a separate folder for it.
std::string root() {
  return ::access("/sys/fs/cgroup/cpu/cgroup.procs", F_OK) == 0 ? "/sys/fs/cgroup/cpu"
                                                                : "/sys/fs/cgroup";
}

bool write(const std::string& file, const std::string& text) {
  std::ofstream out(file);
  out << text << std::flush;
  return out.good();
}

}  // namespace

std::string CpuQuota::unavailable() {
  try {
    const CpuQuota quota(0.5);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return {};
}

CpuQuota::CpuQuota(double cores) : folder_(fmt::format("{}/tutti-test-{}", root(), ::getpid())) {
  if (::mkdir(folder_.c_str(), 0755) != 0 && errno != EEXIST)
    throw std::runtime_error(fmt::format("no cgroup with a quota of processor time can be made"));
  const int quota = static_cast<int>(cores * kPeriod);
  const bool is_set = write(folder_ + "/cpu.max", fmt::format("{} {}", quota, kPeriod)) ||
                      (write(folder_ + "/cpu.cfs_period_us", std::to_string(kPeriod)) &&
                       write(folder_ + "/cpu.cfs_quota_us", std::to_string(quota)));
  if (is_set) return;
  ::rmdir(folder_.c_str());
  throw std::runtime_error("no cgroup with a quota of processor time can be made");
}

CpuQuota::~CpuQuota() { ::rmdir(folder_.c_str()); }

void CpuQuota::join() const {
  if (!write(folder_ + "/cgroup.procs", std::to_string(::getpid())))
    throw std::runtime_error("cannot join " + folder_);
}

}  // namespace tutti::test
