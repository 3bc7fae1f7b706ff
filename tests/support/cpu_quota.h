#pragma once

#include <string>

namespace tutti::test {

/// A cgroup whose processes together get no more than some of a core's time, in periods of 100 ms.
class CpuQuota {
 public:
  /// Why none can be made here; empty if one can.
  static std::string unavailable();
  /// `cores`: 0.5 is half a core. Throws std::runtime_error where none can be made.
  explicit CpuQuota(double cores);
  /// Its processes must have ended.
  ~CpuQuota();
  CpuQuota(const CpuQuota&) = delete;
  CpuQuota& operator=(const CpuQuota&) = delete;
  /// The calling process and all its threads belong to it from now on.
  void join() const;

 private:
  std::string folder_;
};

}  // namespace tutti::test
