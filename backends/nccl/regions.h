#pragma once

#include <memory>
#include <vector>

#include "tutti/backends/backend.h"
#include "tutti/backends/nccl/communicator.h"
#include "tutti/tensor/device_runtime.h"

namespace tutti {

/// The device memory of a backend in which buckets live. From NCCL 2.19 on, large regions are
/// NCCL's own memory (ncclMemAlloc) and registered with each communicator that uses them, so that
/// NCCL works in them directly. Memory of other origin is never registered: NCCL refuses it or
/// hangs when it aborts. All ranks have regions of equal sizes, so all buffers of a call are
/// registered or none. The holder of the engine's token only.
class NcclRegions {
 public:
  NcclRegions(std::shared_ptr<const NcclLibrary> library, DeviceRuntime& runtime, Device device);
  /// The regions are gone, and so are the communicators.
  ~NcclRegions();
  NcclRegions(const NcclRegions&) = delete;
  NcclRegions& operator=(const NcclRegions&) = delete;

  std::unique_ptr<Region> allocate(size_t bytes);
  /// Before a call of this communicator, which is ready for one, that works at `data`.
  void register_for(const std::shared_ptr<NcclCommunicator>& communicator, const std::byte* data);

 private:
  class Memory;
  /// Smaller ones would waste most of NCCL's 2 MiB pages.
  static constexpr size_t kLeastBytes = 1 << 20;

  bool is_safe() const;
  void forget(Memory& memory);

  const std::shared_ptr<const NcclLibrary> library_;
  DeviceRuntime& runtime_;
  const Device device_;
  std::vector<Memory*> regions_;  // of NCCL
  std::vector<void*> late_;       // freed at the end: a communicator still knew them
};

}  // namespace tutti
