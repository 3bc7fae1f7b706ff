#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "tutti/kernels/cuda/device/device_memory.h"
#include "tutti/kernels/cuda/device/driver.h"
#include "tutti/kernels/cuda/device/host_functions.h"
#include "tutti/kernels/cuda/device/memory_pool.h"
#include "tutti/kernels/cuda/device/shared_device_memory.h"
#include "tutti/tensor/device_plugin.h"

namespace tutti::cuda {

/// The runtime of all GPUs that this process sees. There is one per process. It is never destroyed,
/// because CUDA may be unloaded first at exit. Any thread may call it. It leaves each thread's
/// current device unchanged.
///
/// A null stream means a default stream. The call's event or memory determines its device. Without
/// them it is the thread's current device, or, if the thread never used CUDA, the device that this
/// process used first. The library's own streams have the highest priority, so that communication
/// runs first. They also share no hardware queue with the user's streams, because these may be
/// blocked until one of the library's streams stores a value.
class CudaDevice final : public DeviceRuntime {
 public:
  /// Throws Error(unavailable) if there is no GPU.
  CudaDevice();

  DeviceKind kind() const override { return DeviceKind::cuda; }
  int count() override { return static_cast<int>(devices_.size()); }
  void make_current(Device device) override;
  /// Returns zeroed memory from the device's MemoryPool.
  void* allocate(size_t bytes, Device device) override;
  void* allocate_on(size_t bytes, Device device, StreamRef stream) override {
    return state(device.index).pool->allocate(bytes, stream);
  }
  void free(void* memory, Device device) noexcept override;
  DeviceMemoryStatistics memory_statistics(Device device) override {
    return state(device.index).pool->statistics();
  }
  void limit_memory(Device device, size_t bytes) override {
    state(device.index).pool->limit(bytes);
  }
  /// Rounds sizes up to powers of two. Freed memory is kept for reuse, because CUDA waits for the
  /// whole device when it frees pinned memory. A stream of that device may be blocked until this
  /// process stores a value.
  void* allocate_host(size_t bytes) override;
  void free_host(void* memory) noexcept override;
  uint64_t* take_word() override;
  void give_back_word(uint64_t* word) noexcept override;
  StreamRef create_stream(Device device) override;
  void destroy_stream(StreamRef stream) noexcept override;
  void* create_event(Device device) override;
  void destroy_event(void* event) noexcept override;
  void record(void* event, StreamRef stream) override;
  bool reached(void* event) override;
  void wait_event(StreamRef stream, void* event) override;
  /// Blocks the caller until the stream is done if host memory is not pinned; see docs/gpu.md.
  void copy(void* target, const void* source, size_t bytes, StreamRef stream) override;
  void pack(const DeviceBucket& bucket, std::span<const Piece> pieces, Scale scale, bool veto,
            StreamRef stream) override;
  void unpack(const DeviceBucket& bucket, std::span<const Piece> pieces, Scale scale,
              const DeviceOutcome& outcome, StreamRef stream) override;
  void reduce(const DeviceReduction& reduction, StreamRef stream) override;
  void reduce_by_flags(const DeviceFlags& flags, StreamRef stream) override;
  std::string identity(Device device) override;
  void reach(Device from, Device to) override;
  void* allocate_shared(size_t bytes, Device device, DeviceHandle& handle) override;
  void free_shared(void* memory) noexcept override { shared_.give_back(memory); }
  void* map_shared(const DeviceHandle& handle, Device device) override;
  void unmap_shared(void* memory) noexcept override;
  void register_host(void* memory, size_t bytes) override;
  void forget_host(void* memory) noexcept override;
  /// The function runs on a thread of this object (see host_functions.h). After a device failed, no
  /// function is called.
  void host_function(StreamRef stream, std::function<void()> function) override;
  void write_word(StreamRef stream, uint64_t* word, uint64_t value) override;
  void wait_words(StreamRef stream, std::span<const AwaitedWord> words) override;
  void synchronize(StreamRef stream) override;
  void require_alive(Device device) override;

  DeviceDescription describe(int device);

 private:
  struct DeviceState {
    std::once_flag once;
    // Constant after that.
    CUcontext context = nullptr;           // the context that the whole process shares
    bool has_pools = false;                // allocating and freeing does not wait for the device
    bool has_word_commands = false;        // streams store and await words without a kernel
    cudaStream_t memory_stream = nullptr;  // used only by allocate() and free()
    std::unique_ptr<DeviceMemory> memory;
    std::unique_ptr<MemoryPool> pool;  // allocates from `memory`
  };
  DeviceState& state(int device);
  void prepare(DeviceState& state, int device);
  ContextScope scope(int device) { return {driver_, state(device).context, device}; }
  int current_device() const;
  int device_of(StreamRef stream, const void* memory = nullptr, const void* other = nullptr);

  std::vector<DeviceState> devices_;
  const Driver driver_;
  std::atomic<int> first_used_{-1};

  std::mutex mutex_;  // guards the following
  std::vector<uint64_t*> free_words_;
  std::unordered_map<void*, size_t> host_sizes_;      // sizes of all pinned memory
  std::unordered_multimap<size_t, void*> free_host_;  // unused pinned memory, by size

  SharedDeviceMemory shared_;

  std::once_flag ended_with_process_;
  HostFunctions functions_{[this](uint64_t* word) { give_back_word(word); }};
};

/// Returns the runtime of this process.
CudaDevice& cuda_device();

}  // namespace tutti::cuda
