#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "tutti/base/process/fork_guard.h"
#include "tutti/tensor/device_runtime.h"

namespace tutti {

/// Keeps host memory of a device's runtime for reuse, because an allocation is slow and may wait
/// for the device. Free and used blocks together have at most twice the bytes that were ever used
/// at the same time. A used block keeps the pool alive. Any thread may use the pool, also host
/// functions of a device's stream.
class HostPool : public std::enable_shared_from_this<HostPool> {
 public:
  explicit HostPool(DeviceRuntime& runtime) : runtime_(runtime) {}
  ~HostPool();

  /// Returns a block of at least `bytes`. Throws Error(out_of_memory).
  std::shared_ptr<void> take(size_t bytes);

 private:
  void* find(size_t& size);
  void give_back(void* memory, size_t size);

  DeviceRuntime& runtime_;
  const ForkGuard fork_guard_;         // a fork neither frees nor returns blocks
  std::mutex mutex_;                   // guards the members below
  std::multimap<size_t, void*> free_;  // keyed by size
  size_t free_bytes_ = 0;
  size_t used_bytes_ = 0;
  size_t most_used_bytes_ = 0;
};

}  // namespace tutti
