#pragma once

#include <map>
#include <mutex>

#include "tutti/base/descriptor.h"
#include "tutti/tensor/device_runtime.h"

namespace tutti {

/// The fake device's memory that other processes map. It consists of files without a name, which a
/// handle finds in the /proc folder of their process. It is as strict as CUDA's IPC: only a whole
/// allocation of this kind has a handle, and a process cannot map its own.
class FakeSharedMemory {
 public:
  FakeSharedMemory() = default;
  /// Unmaps the allocations of its own process. Other processes keep their mappings.
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

  std::mutex mutex_;  // guards the fields below
  std::map<void*, Own> own_;
  std::map<void*, Mapped> mapped_;
};

}  // namespace tutti
