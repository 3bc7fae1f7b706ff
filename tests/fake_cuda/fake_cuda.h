#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/tensor/fake_device.h"
#include "tutti/adapters/nn/kernels/cuda/layers/kernel_list.h"
#include "tutti/adapters/nn/kernels/cuda/libraries/libraries.h"
#include "tutti/kernels/cuda/device/memory_pool.h"

namespace tutti::test {

/// A simulated GPU: the fake device with a real GPU's memory pool. Kernels run on its streams as
/// host functions, and the fakes of cuBLASLt and cuDNN compute with oneDNN. It knows all of its
/// memory. A violation of CUDA's or the libraries' rules becomes a fault: wrong order, wrong
/// stream, alignment, workspace, unfinished descriptor, or a call that a capture forbids. The first
/// fault is thrown by the next call that synchronizes.
class FakeCuda final : public FakeDevice {
 public:
  explicit FakeCuda(const Options& options);
  ~FakeCuda() override;

  void* allocate(size_t bytes, Device device) override;
  void* allocate_on(size_t bytes, Device device, StreamRef stream) override;
  void free(void* memory, Device device) noexcept override;
  void* allocate_shared(size_t bytes, Device device, DeviceHandle& handle) override;
  void free_shared(void* memory) noexcept override;
  DeviceMemoryStatistics memory_statistics(Device) override { return pool_->statistics(); }
  void limit_memory(Device, size_t bytes) override { pool_->limit(bytes); }
  bool reached(void* event) override;
  void synchronize(StreamRef stream) override;

  /// Puts a function on a stream, in stream order.
  void enqueue(StreamRef stream, std::function<void()> function) {
    host_function(stream, std::move(function));
  }
  /// Returns whether all of these bytes belong to one allocation that exists.
  bool owns(const void* memory, size_t bytes);
  /// Until end_capture(), waits, event queries and allocations from the driver are faults.
  void begin_capture();
  void end_capture();
  bool is_capturing();

  void add_fault(std::string fault);
  /// The faults since the last call.
  std::vector<std::string> take_faults();
  /// Counts calls of library functions since the process began; kernels count as "launch".
  void count_call(const std::string& function);
  std::map<std::string, int64_t> calls();
  /// The memory that the driver still has; a larger allocation is out of memory.
  void set_memory_limit(size_t bytes);

 private:
  class Source;
  std::mutex mutex_;  // guards the fields below
  std::map<const std::byte*, size_t> owned_;
  std::vector<std::string> faults_;
  std::map<std::string, int64_t> calls_;
  bool is_capturing_ = false;
  size_t memory_limit_ = size_t{16} << 30;

  std::unique_ptr<Source> source_;
  std::unique_ptr<cuda::MemoryPool> pool_;
};

/// The simulated GPU of this process, made at the first call and never destroyed. With
/// FAKE_CUDA_DELAY, operations on streams wait up to that number of microseconds.
FakeCuda& fake_cuda();

/// Runs kernels on streams of the fake, with their threads in forward and backward order in turn.
std::shared_ptr<cuda::Launcher> host_launcher();
cuda::CublasLt fake_cublaslt();
cuda::Cudnn fake_cudnn();

/// Faults to inject into the fakes of this process.
struct FakeTroubles {
  std::string cublaslt_file,
      cudnn_file;                                  // missing files to load instead of the fakes
  size_t cublaslt_version = 0, cudnn_version = 0;  // reported instead of the real one
};
FakeTroubles& fake_troubles();

}  // namespace tutti::test
