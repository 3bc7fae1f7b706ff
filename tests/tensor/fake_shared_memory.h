#pragma once

#include <map>
#include <mutex>

#include "tutti/base/descriptor.h"
#include "tutti/tensor/device_runtime.h"

namespace tutti {

/// The fake device's memory that other processes map: files without a name, which a handle finds in
/// the folder of their process. As strict as CUDA's IPC: what is not a whole allocation of this
/// kind has no handle, and a process cannot map its own.
class FakeSharedMemory {
 public:
  FakeSharedMemory() = default;
  /// Unmaps what its own process allocated; who maps it elsewhere keeps it.
  ~FakeSharedMemory();
  FakeSharedMemory(const FakeSharedMemory&) = delete;
  FakeSharedMemory& operator=(const FakeSharedMemory&) = delete;

  void* allocate(size_t bytes, Device device, DeviceHandle& handle);
  void give_back(void* memory) noexcept;
  void* map(const DeviceHandle& handle);
  void unmap(void* memory) noexcept;

 private:
  struct Own {
    Descriptor file;
    size_t bytes = 0;
    bool is_free = false;
  };
  struct Mapped {
    DeviceHandle handle;
    size_t bytes = 0;
    int uses = 0;
  };

  std::mutex mutex_;  // guards the following
  std::map<void*, Own> own_;
  std::map<void*, Mapped> mapped_;
};

}  // namespace tutti
