#pragma once

#include <string>

namespace tutti::test {

/// A cgroup whose processes together get at most a part of a core's time, in periods of 100 ms.
class CpuQuota {
 public:
  /// Returns why this machine cannot make one, or "".
  static std::string unavailable();
  /// `cores`: 0.5 is half a core. Throws std::runtime_error if the cgroup cannot be made.
  explicit CpuQuota(double cores);
  /// The processes of the cgroup must have ended.
  ~CpuQuota();
  CpuQuota(const CpuQuota&) = delete;
  CpuQuota& operator=(const CpuQuota&) = delete;
  /// Moves the calling process with all its threads into the cgroup.
  void join() const;

 private:
  std::string folder_;
};

}  // namespace tutti::test
