#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <unordered_map>

#include "tutti/tensor/device_runtime.h"

namespace tutti::cuda {

/// Device memory that processes of one host share by CUDA's IPC. CUDA exports only whole
/// allocations of cudaMalloc() in this way, neither parts of them nor those of its pools, and says
/// nothing of a process that frees what another one has mapped: so what is given back here is kept
/// for the next who asks. Any thread; the device in question is the thread's current one.
class SharedDeviceMemory {
 public:
  /// In whole pages of 2 MiB. Throws Error(out_of_memory | unavailable).
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
  std::map<std::pair<int, DeviceHandle>, void*> places_;  // of what is mapped
};

/// Lets the current device, `from`, work on the memory of `to`: what CUDA allocates and what comes
/// from its pools. Throws Error(unavailable).
void enable_peer(int from, int to);

}  // namespace tutti::cuda
