#include "tutti/kernels/cuda/device/device_memory.h"

#include "tutti/kernels/cuda/device/calls.h"

namespace tutti::cuda {

namespace {

cudaEvent_t mark_of(void* event) { return static_cast<cudaEvent_t>(event); }
cudaStream_t user_of(StreamRef stream) { return static_cast<cudaStream_t>(stream.native); }

}  // namespace

DeviceMemory::DeviceMemory(const Driver& driver, CUcontext context, int device, bool has_pools,
                           cudaStream_t stream)
    : driver_(driver), context_(context), device_(device), has_pools_(has_pools), stream_(stream) {}

void* DeviceMemory::reserve(size_t bytes) {
  const auto current = scope();
  void* memory = nullptr;
  auto status = has_pools_ ? cudaMallocAsync(&memory, bytes, stream_) : cudaMalloc(&memory, bytes);
  if (status == cudaErrorMemoryAllocation) {
    forget_error();
    return nullptr;
  }
  check(status, "allocate", device_);
  // Waits, because other streams may use the memory only after `stream_` has allocated it.
  if (has_pools_) check(cudaStreamSynchronize(stream_), "allocate", device_);
  return memory;
}

// An error cannot be handled here: the memory is lost, or the process is ending.
void DeviceMemory::release(void* memory) noexcept try {
  const auto current = scope();
  if (has_pools_)
    cudaFreeAsync(memory, stream_);
  else
    cudaFree(memory);
  forget_error();
} catch (...) {
}

void* DeviceMemory::create_event() {
  const auto current = scope();
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "create an event", device_);
  return event;
}

void DeviceMemory::destroy_event(void* event) noexcept {
  cudaEventDestroy(mark_of(event));
  forget_error();
}

bool DeviceMemory::record(void* event, StreamRef stream) noexcept try {
  const auto current = scope();
  const auto status = cudaEventRecord(mark_of(event), user_of(stream));
  forget_error();
  return status == cudaSuccess;
} catch (...) {
  return false;
}

bool DeviceMemory::reached(void* event) noexcept {
  const auto status = cudaEventQuery(mark_of(event));
  forget_error();
  return status == cudaSuccess;
}

void DeviceMemory::wait(StreamRef stream, void* event) {
  const auto current = scope();
  check(cudaStreamWaitEvent(user_of(stream), mark_of(event), 0), "wait for memory", device_);
}

}  // namespace tutti::cuda
