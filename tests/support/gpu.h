#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "tutti/tensor/device_runtime.h"
#include "tutti/tensor/tensor.h"

namespace tutti::test {

constexpr Device kGpu{DeviceKind::cuda, 0};

/// Why tests on a GPU cannot run here, or nothing. Asked once, in a child process: CUDA does not
/// survive a fork, and the tests' ranks are forks of this process.
std::string why_no_gpu();
/// The same, where `more` may throw what else is missing; before this process has used CUDA.
std::string why_no_gpu(const std::function<void()>& more);

/// Values on the GPU and back, in order of a stream of its own.
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
  /// Into memory that is not pinned. The copy waits inside of CUDA for the stream and for all that
  /// the stream waits for, and keeps the process's other threads from much meanwhile (docs/gpu.md).
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
