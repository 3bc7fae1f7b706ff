#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>

#include "tutti/adapters/nn/kernels/cuda/layers/kernel_list.h"
#include "tutti/adapters/nn/kernels/cuda/libraries/libraries.h"
#include "tutti/adapters/nn/kernels/cuda/trainer/convolutions.h"
#include "tutti/adapters/nn/kernels/cuda/trainer/products.h"
#include "tutti/adapters/nn/kernels/layer_kernels.h"
#include "tutti/tensor/device_runtime.h"

namespace tutti::cuda {

/// The parts of a machine that layers need. A library is loaded only when a layer first needs it,
/// so that a model without convolutions needs no cuDNN.
struct GpuMachine {
  DeviceRuntime* runtime = nullptr;
  std::shared_ptr<Launcher> launcher;
  std::function<CublasLt()> cublaslt;
  std::function<Cudnn()> cudnn;
};

/// Layers on a GPU. cuBLASLt multiplies matrices, cuDNN computes convolutions, and the kernels of
/// kernel_list.h do everything else. Each call is queued on the stream of its output and never
/// blocks. Scratch memory is kept per stream and only grows. f32 weights are rounded to the dtype
/// of a layer's input at each call.
class GpuLayerKernels final : public LayerKernels {
 public:
  GpuLayerKernels(Device device, GpuMachine machine);
  ~GpuLayerKernels() override;

  Device device() const override { return device_; }
  StreamRef stream() const override { return stream_; }
  using LayerKernels::make_tensor, LayerKernels::upload;
  Tensor make_tensor(const Shape& shape, DataType dtype, StreamRef stream) override;
  Tensor upload(const Tensor& host, StreamRef stream) override;
  // This declares the other functions of LayerKernels.
#include "tutti/adapters/nn/kernels/layer_overrides-inl.h"

 private:
  struct Scratch {
    std::byte* memory = nullptr;
    size_t bytes = 0;
  };
  template <class Kernel>
  void launch(const Kernel& kernel, StreamRef stream) {
    machine_.launcher->launch(kernel, stream);
  }
  /// Returns scratch memory, aligned to 256 bytes, which the next call on that stream reuses. Each
  /// stream has one buffer for copies of operands, one for the workspaces of libraries, and one for
  /// partial sums.
  enum class Use : uint8_t { copies, workspace, sums };
  std::byte* scratch(Use use, size_t bytes, StreamRef stream);
  /// Returns the elements of a tensor in the given dtype, dense: either the tensor's own memory or
  /// a rounded copy at `*to`. `*to` advances by rounded_bytes().
  const void* rounded(const ConstTensorView& tensor, DataType dtype, std::byte** to,
                      StreamRef stream);
  void convolve(ConvolutionPass pass, const ConvolutionShape& shape, DataType dtype,
                const void* image, const void* weight, const void* output, StreamRef stream);
  void multiply(const Product& product, StreamRef stream);
  /// Adds the sums over the rows of [rows, columns] to `totals`. With an input and the statistics
  /// of layer norm, it also adds the products with the normalised input to `products`.
  template <class T>
  void sum_columns(int64_t rows, int64_t columns, const T* output_gradient, const T* input,
                   const float* statistics, float* products, float* totals, StreamRef stream) {
    const int64_t stripes = blocks_for(columns, ColumnSums<T>::kColumns);
    const int64_t parts = parts_for(rows, 64, stripes);
    auto* sums = reinterpret_cast<double*>(
        scratch(Use::sums, static_cast<size_t>(2 * parts * columns) * sizeof(double), stream));
    launch(ColumnSums<T>{rows, columns, parts, output_gradient, input, statistics, sums}, stream);
    launch(ColumnTotals{{columns}, parts, sums, products, totals}, stream);
  }
  /// Computes the moments of batch norm: from an input or, if an output gradient is given, from
  /// that gradient.
  template <class T>
  void sum_channels(const Channels& shape, const T* input, const T* output_gradient,
                    const float* mean, const float* inverse_deviation, double* moments,
                    StreamRef stream) {
    const int64_t parts = parts_for(shape.values(), 4 * kWide * kThreads, shape.channels);
    auto* sums = reinterpret_cast<double*>(scratch(
        Use::sums, static_cast<size_t>(2 * parts * shape.channels) * sizeof(double), stream));
    launch(BatchNormSums<T>{shape, parts, input, output_gradient, mean, sums}, stream);
    launch(BatchNormMoments{{shape.channels}, shape, parts, sums, inverse_deviation, moments},
           stream);
  }
  /// Returns into how many parts each block's work is split, so that the whole GPU is busy.
  /// `others` is the number of blocks without the split. Each part has at least `least` of the
  /// `count` elements of a block's work.
  static int64_t parts_for(int64_t count, int64_t least, int64_t others) {
    constexpr int64_t kWanted = 2048;  // blocks
    const int64_t most = std::max<int64_t>(kWanted / std::max<int64_t>(others, 1), 1);
    return std::clamp<int64_t>(count / least, 1, most);
  }
  Products& products();
  Convolutions& convolutions();

  const Device device_;
  const GpuMachine machine_;
  const StreamRef stream_;
  std::map<std::pair<void*, Use>, Scratch> scratch_;
  CublasLt cublaslt_;
  Cudnn cudnn_;
  std::unique_ptr<Products> products_;
  std::unique_ptr<Convolutions> convolutions_;
};

}  // namespace tutti::cuda
