#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "tutti/tensor/device_runtime.h"
#include "tutti/tensor/tensor.h"

namespace tutti::test {

constexpr Device kGpu{DeviceKind::cuda, 0};

/// Returns why tests on a GPU cannot run, or "". A child process finds out once, because CUDA does
/// not survive a fork and the tests' ranks are forks of this process.
std::string why_no_gpu();
/// Does the same; `more` may throw another reason. Must be called before this process has used
/// CUDA.
std::string why_no_gpu(const std::function<void()>& more);

/// Copies values to the GPU and back, in the order of its own stream.
class Gpu {
 public:
  Gpu() : runtime_(device_runtime(DeviceKind::cuda)), stream_(runtime_.create_stream(kGpu)) {}
  ~Gpu() { runtime_.destroy_stream(stream_); }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  template <class T>
  Tensor make(const std::vector<T>& values) {
    Tensor tensor(Shape{static_cast<int64_t>(values.size())}, dtype_of<T>(), kGpu);
    runtime_.copy(tensor.data(), values.data(), values.size() * sizeof(T), stream_);
    runtime_.synchronize(stream_);
    return tensor;
  }
  TensorView view(const Tensor& tensor) const {
    return {tensor.data(), tensor.shape(), tensor.dtype(), kGpu, stream_};
  }
  template <class T>
  std::vector<T> read(const Tensor& tensor) {
    std::vector<T> values(static_cast<size_t>(tensor.count()));
    auto* pinned = static_cast<T*>(runtime_.allocate_host(values.size() * sizeof(T)));
    runtime_.copy(pinned, tensor.data(), values.size() * sizeof(T), stream_);
    runtime_.synchronize(stream_);
    std::copy_n(pinned, values.size(), values.begin());
    runtime_.free_host(pinned);
    return values;
  }
  /// Copies into memory that is not pinned. The copy waits inside CUDA for the stream and
  /// everything before it. Meanwhile it blocks many calls of the process's other threads
  /// (docs/gpu.md).
  template <class T>
  std::vector<T> read_at_once(const Tensor& tensor) {
    std::vector<T> values(static_cast<size_t>(tensor.count()));
    runtime_.copy(values.data(), tensor.data(), values.size() * sizeof(T), stream_);
    runtime_.synchronize(stream_);
    return values;
  }
  StreamRef stream() const { return stream_; }

 private:
  DeviceRuntime& runtime_;
  const StreamRef stream_;
};

}  // namespace tutti::test
