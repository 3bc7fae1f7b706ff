#include "tutti/kernels/cuda/device/shared_device_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tutti/base/error.h"
#include "tutti/kernels/cuda/device/calls.h"

namespace tutti::cuda {

namespace {

constexpr size_t kPage = 2 << 20;
static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(DeviceHandle));

}  // namespace

void* SharedDeviceMemory::allocate(size_t bytes, int device, DeviceHandle& handle) {
  const size_t size = std::max(kPage, (bytes + kPage - 1) / kPage * kPage);
  const std::lock_guard lock(mutex_);
  if (const auto found = free_.find({device, size}); found != free_.end()) {
    void* memory = found->second;
    free_.erase(found);
    handle = own_.at(memory).handle;
    return memory;
  }
  void* memory = nullptr;
  const auto status = cudaMalloc(&memory, size);
  if (status == cudaErrorMemoryAllocation) {
    forget_error();
    throw Error(ErrorCode::out_of_memory,
                fmt::format("cannot allocate {} bytes that other processes reach on {}; free "
                            "tensors of the device, or use smaller ones",
                            size, to_string(Device{DeviceKind::cuda, device})));
  }
  check(status, "allocate memory that other processes reach", device);
  cudaIpcMemHandle_t exported;
  if (const auto refused = cudaIpcGetMemHandle(&exported, memory); refused != cudaSuccess) {
    cudaFree(memory);
    forget_error();
    check(refused, "share memory with other processes", device);
  }
  std::memcpy(handle.data(), &exported, sizeof exported);
  own_.emplace(memory, Own{size, device, handle});
  return memory;
}

void SharedDeviceMemory::give_back(void* memory) noexcept {
  const std::lock_guard lock(mutex_);
  const auto& own = own_.at(memory);
  free_.emplace(std::pair(own.device, own.bytes), memory);
}

void* SharedDeviceMemory::map(const DeviceHandle& handle, int device) {
  const std::lock_guard lock(mutex_);
  const std::pair key(device, handle);
  if (const auto found = places_.find(key); found != places_.end()) {
    ++mapped_.at(found->second).uses;
    return found->second;
  }
  cudaIpcMemHandle_t exported;
  std::memcpy(&exported, handle.data(), sizeof exported);
  void* memory = nullptr;
  check(cudaIpcOpenMemHandle(&memory, exported, cudaIpcMemLazyEnablePeerAccess),
        "map memory of another process", device);
  places_.emplace(key, memory);
  mapped_.emplace(memory, Mapped{key, 1});
  return memory;
}

void SharedDeviceMemory::unmap(void* memory) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = mapped_.find(memory);
  if (found == mapped_.end() || --found->second.uses > 0) return;
  cudaIpcCloseMemHandle(memory);
  forget_error();
  places_.erase(found->second.key);
  mapped_.erase(found);
}

void enable_peer(int from, int to) {
  int can = 0;
  check(cudaDeviceCanAccessPeer(&can, from, to), "ask for its peers", from);
  if (can == 0)
    throw Error(ErrorCode::unavailable,
                fmt::format("{} cannot reach the memory of {} (nvidia-smi topo -p2p r says how "
                            "they are connected); use nccl, or shm",
                            to_string(Device{DeviceKind::cuda, from}),
                            to_string(Device{DeviceKind::cuda, to})));
  const auto status = cudaDeviceEnablePeerAccess(to, 0);
  if (status != cudaErrorPeerAccessAlreadyEnabled)
    check(status, "reach the memory of another device", from);
  forget_error();
  int has_pools = 0;
  check(cudaDeviceGetAttribute(&has_pools, cudaDevAttrMemoryPoolsSupported, to), "start", to);
  if (has_pools == 0) return;
  cudaMemPool_t pool;
  check(cudaDeviceGetDefaultMemPool(&pool, to), "start", to);
  cudaMemAccessDesc access{};
  access.location = {cudaMemLocationTypeDevice, from};
  access.flags = cudaMemAccessFlagsProtReadWrite;
  check(cudaMemPoolSetAccess(pool, &access, 1), "reach the memory of another device", from);
}

}  // namespace tutti::cuda
