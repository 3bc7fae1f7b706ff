#pragma once

#include <memory>
#include <vector>

#include "tutti/backends/backend.h"
#include "tutti/backends/nccl/communicator.h"
#include "tutti/tensor/device_runtime.h"

namespace tutti {

/// The device memory of a backend's buckets. From NCCL 2.19 on, large regions come from
/// ncclMemAlloc. They are registered with each communicator that uses them, so that NCCL works
/// directly in them. NCCL refuses to register other memory, or hangs in a later abort. So other
/// memory is never registered.
///
/// All ranks have regions of the same sizes. So either all buffers of a call are registered or none
/// is. Only the thread that drives the engine uses this class.
class NcclRegions {
 public:
  NcclRegions(std::shared_ptr<const NcclLibrary> library, DeviceRuntime& runtime, Device device);
  /// All regions and communicators must have been destroyed.
  ~NcclRegions();
  NcclRegions(const NcclRegions&) = delete;
  NcclRegions& operator=(const NcclRegions&) = delete;

  std::unique_ptr<Region> allocate(size_t bytes);
  /// Registers the region that holds `data`, if there is one, with a communicator, unless that is
  /// done already. Must be called before NCCL works in that region. The communicator must be ready.
  void register_for(const std::shared_ptr<NcclCommunicator>& communicator, const std::byte* data);

 private:
  class Memory;
  /// Regions smaller than this are plain device memory, because they would waste most of NCCL's 2
  /// MiB pages.
  static constexpr size_t kLeastBytes = 1 << 20;

  bool is_safe() const;
  void forget(Memory& memory);

  const std::shared_ptr<const NcclLibrary> library_;
  DeviceRuntime& runtime_;
  const Device device_;
  std::vector<Memory*> regions_;  // the regions from ncclMemAlloc
  // freed by the destructor, because a communicator still had them registered
  std::vector<void*> late_;
};

}  // namespace tutti
