#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <unordered_map>

#include "tutti/tensor/device_runtime.h"

namespace tutti::cuda {

/// Device memory that processes of one host share by CUDA's IPC. CUDA exports only whole
/// allocations of cudaMalloc(), not parts of them and not memory of its pools. It also does not
/// define what happens to a mapping when the owner frees the memory, so freed memory is kept here
/// for reuse. Any thread may call this; the device in question must be the thread's current one.
class SharedDeviceMemory {
 public:
  /// Allocates whole pages of 2 MiB. Throws Error(out_of_memory | unavailable).
  void* allocate(size_t bytes, int device, DeviceHandle& handle);
  void give_back(void* memory) noexcept;
  void* map(const DeviceHandle& handle, int device);
  void unmap(void* memory) noexcept;

 private:
  struct Own {
    size_t bytes;
    int device;
    DeviceHandle handle;
  };
  struct Mapped {
    std::pair<int, DeviceHandle> key;
    int uses;
  };

  std::mutex mutex_;  // guards the following
  std::unordered_map<void*, Own> own_;
  std::multimap<std::pair<int, size_t>, void*> free_;
  std::unordered_map<void*, Mapped> mapped_;
  std::map<std::pair<int, DeviceHandle>, void*> places_;  // addresses of mapped memory
};

/// Lets the current device, `from`, access the memory of `to`. This includes memory from
/// cudaMalloc() and memory of CUDA's pools. Throws Error(unavailable).
void enable_peer(int from, int to);

}  // namespace tutti::cuda
