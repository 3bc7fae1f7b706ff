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

/// A GPU that is none: the tests' device with the pool of a real one, on whose streams kernels run
/// as functions of the host and the fakes of cuBLASLt and cuDNN compute by oneDNN. It knows all of
/// its memory, and what breaks a rule of CUDA's or of the libraries' becomes a fault: of order,
/// streams, alignment, workspaces, unfinished descriptors, or calls that a stream under capture
/// forbids. The first fault is thrown at whoever synchronizes next.
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

  /// Puts a function on a stream, in its order.
  void enqueue(StreamRef stream, std::function<void()> function) {
    host_function(stream, std::move(function));
  }
  /// Whether all of these bytes are of one piece of memory that somebody has.
  bool owns(const void* memory, size_t bytes);
  /// From now on waiting, asking for events and taking memory from the driver are faults.
  void begin_capture();
  void end_capture();
  bool is_capturing();

  void add_fault(std::string fault);
  /// Since the last call.
  std::vector<std::string> take_faults();
  /// Calls of functions of the libraries, kernels by "launch", since the process began.
  void count_call(const std::string& function);
  std::map<std::string, int64_t> calls();
  /// What the driver has left; more is out of memory.
  void set_memory_limit(size_t bytes);

 private:
  class Source;
  std::mutex mutex_;  // guards the following
  std::map<const std::byte*, size_t> owned_;
  std::vector<std::string> faults_;
  std::map<std::string, int64_t> calls_;
  bool is_capturing_ = false;
  size_t memory_limit_ = size_t{16} << 30;

  std::unique_ptr<Source> source_;
  std::unique_ptr<cuda::MemoryPool> pool_;
};

/// The one of this process, made at the first call and never destroyed. FAKE_CUDA_DELAY: operations
/// of streams wait up to so many microseconds.
FakeCuda& fake_cuda();

/// Runs kernels on streams of the fake, forwards and backwards in turn.
std::shared_ptr<cuda::Launcher> host_launcher();
cuda::CublasLt fake_cublaslt();
cuda::Cudnn fake_cudnn();

/// What is to go wrong in the fakes of this process.
struct FakeTroubles {
  std::string cublaslt_file,
      cudnn_file;  // loaded instead of the fakes: of files that are not there
  size_t cublaslt_version = 0, cudnn_version = 0;  // told instead of the true one
};
FakeTroubles& fake_troubles();

}  // namespace tutti::test
