#pragma once

#include <cuda_runtime_api.h>

#include "tutti/kernels/cuda/device/driver.h"
#include "tutti/kernels/cuda/device/memory_pool.h"

namespace tutti::cuda {

/// A GPU's memory as CUDA allocates it. If the driver supports memory pools, segments come from the
/// default pool, which waits for no stream and keeps freed memory.
class DeviceMemory final : public MemorySource {
 public:
  /// `stream` is used only by this object, and by its owner for work that the owner waits for. So
  /// it is never busy for long.
  DeviceMemory(const Driver& driver, CUcontext context, int device, bool has_pools,
               cudaStream_t stream);

  void* reserve(size_t bytes) override;
  void release(void* memory) noexcept override;
  void* create_event() override;
  void destroy_event(void* event) noexcept override;
  bool record(void* event, StreamRef stream) noexcept override;
  bool reached(void* event) noexcept override;
  void wait(StreamRef stream, void* event) override;

 private:
  ContextScope scope() { return {driver_, context_, device_}; }

  const Driver& driver_;
  const CUcontext context_;
  const int device_;
  const bool has_pools_;
  const cudaStream_t stream_;
};

}  // namespace tutti::cuda
