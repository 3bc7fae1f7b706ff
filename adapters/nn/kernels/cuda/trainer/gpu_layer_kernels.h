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
  void fill_zero(const TensorView& tensor) override;

  void linear_forward(const ConstTensorView& input, const ConstTensorView& weight,
                      const ConstTensorView& bias, const TensorView& output) override;
  void linear_backward_input(const ConstTensorView& weight, const ConstTensorView& output_gradient,
                             const TensorView& input_gradient) override;
  void linear_backward_weights(const ConstTensorView& input, const ConstTensorView& output_gradient,
                               const TensorView& weight_gradient,
                               const TensorView& bias_gradient) override;
  void convolution_forward(const ConvolutionOptions& options, const ConstTensorView& input,
                           const ConstTensorView& weight, const ConstTensorView& bias,
                           const TensorView& output) override;
  void convolution_backward_input(const ConvolutionOptions& options, const ConstTensorView& weight,
                                  const ConstTensorView& output_gradient,
                                  const TensorView& input_gradient) override;
  void convolution_backward_weights(const ConvolutionOptions& options, const ConstTensorView& input,
                                    const ConstTensorView& output_gradient,
                                    const TensorView& weight_gradient,
                                    const TensorView& bias_gradient) override;
  int64_t pooling_workspace_bytes(const PoolingOptions& options, const Shape& input) override;
  void pooling_forward(const PoolingOptions& options, const ConstTensorView& input,
                       const TensorView& output, const TensorView& workspace) override;
  void pooling_backward(const PoolingOptions& options, const ConstTensorView& output_gradient,
                        const ConstTensorView& workspace,
                        const TensorView& input_gradient) override;
  void global_average_forward(const ConstTensorView& input, const TensorView& output) override;
  void global_average_backward(const ConstTensorView& output_gradient,
                               const TensorView& input_gradient) override;
  void activation_forward(Activation activation, const ConstTensorView& input,
                          const TensorView& output) override;
  void activation_backward(Activation activation, const ConstTensorView& kept,
                           const ConstTensorView& output_gradient,
                           const TensorView& input_gradient) override;
  void softmax_cross_entropy_forward(const ConstTensorView& logits, const ConstTensorView& labels,
                                     const TensorView& log_probabilities,
                                     const TensorView& losses) override;
  void softmax_cross_entropy_backward(const ConstTensorView& log_probabilities,
                                      const ConstTensorView& labels, float scale,
                                      const TensorView& logit_gradient) override;
  void negative_log_likelihood_forward(const ConstTensorView& input, const ConstTensorView& labels,
                                       const TensorView& losses) override;
  void negative_log_likelihood_backward(const ConstTensorView& labels, float scale,
                                        const TensorView& input_gradient) override;
  void squared_error_forward(const ConstTensorView& input, const ConstTensorView& target,
                             const TensorView& losses) override;
  void squared_error_backward(const ConstTensorView& input, const ConstTensorView& target,
                              float scale, const TensorView& input_gradient) override;
  void log_softmax_forward(const ConstTensorView& input, const TensorView& output) override;
  void log_softmax_backward(const ConstTensorView& output, const ConstTensorView& output_gradient,
                            const TensorView& input_gradient) override;
  void batch_norm_moments(const ConstTensorView& input, const TensorView& moments) override;
  void batch_norm_statistics(const ConstTensorView& moments, double epsilon, double momentum,
                             const TensorView& mean, const TensorView& inverse_deviation,
                             const TensorView& running_mean,
                             const TensorView& running_variance) override;
  void batch_norm_running_statistics(const ConstTensorView& running_mean,
                                     const ConstTensorView& running_variance, double epsilon,
                                     const TensorView& mean,
                                     const TensorView& inverse_deviation) override;
  void batch_norm_forward(const ConstTensorView& input, const ConstTensorView& mean,
                          const ConstTensorView& inverse_deviation, const ConstTensorView& weight,
                          const ConstTensorView& bias, const TensorView& output) override;
  void batch_norm_backward_moments(const ConstTensorView& input, const ConstTensorView& mean,
                                   const ConstTensorView& inverse_deviation,
                                   const ConstTensorView& output_gradient,
                                   const TensorView& moments) override;
  void batch_norm_backward_input(const ConstTensorView& input, const ConstTensorView& mean,
                                 const ConstTensorView& inverse_deviation,
                                 const ConstTensorView& weight,
                                 const ConstTensorView& output_gradient,
                                 const ConstTensorView& moments,
                                 const TensorView& input_gradient) override;
  void batch_norm_backward_weights(const ConstTensorView& moments,
                                   const TensorView& weight_gradient,
                                   const TensorView& bias_gradient) override;
  void layer_norm_forward(double epsilon, const ConstTensorView& input,
                          const ConstTensorView& weight, const ConstTensorView& bias,
                          const TensorView& output, const TensorView& statistics) override;
  void layer_norm_backward_input(const ConstTensorView& input, const ConstTensorView& statistics,
                                 const ConstTensorView& weight,
                                 const ConstTensorView& output_gradient,
                                 const TensorView& input_gradient) override;
  void layer_norm_backward_weights(const ConstTensorView& input, const ConstTensorView& statistics,
                                   const ConstTensorView& output_gradient,
                                   const TensorView& weight_gradient,
                                   const TensorView& bias_gradient) override;
  void embedding_forward(const ConstTensorView& indices, const ConstTensorView& table,
                         const TensorView& output) override;
  void embedding_backward(const ConstTensorView& indices, const ConstTensorView& output_gradient,
                          const TensorView& table_gradient) override;
  void attention_forward(const AttentionOptions& options, const ConstTensorView& packed,
                         const TensorView& output, const TensorView& log_sums) override;
  void attention_backward(const AttentionOptions& options, const ConstTensorView& packed,
                          const ConstTensorView& output, const ConstTensorView& log_sums,
                          const ConstTensorView& output_gradient,
                          const TensorView& packed_gradient) override;
  void recurrent_forward(Recurrence recurrence, const ConstTensorView& gates,
                         const ConstTensorView& weight, const ConstTensorView& bias,
                         const TensorView& output, const TensorView& kept) override;
  void recurrent_backward(Recurrence recurrence, const ConstTensorView& weight,
                          const ConstTensorView& output, const ConstTensorView& kept,
                          const ConstTensorView& output_gradient, const TensorView& gates_gradient,
                          const TensorView& hidden_gradient) override;
  void row_products_forward(const ConstTensorView& a, const ConstTensorView& b,
                            const TensorView& output) override;
  void row_products_backward(const ConstTensorView& b, const ConstTensorView& output_gradient,
                             const TensorView& a_gradient) override;
  void dropout(const RandomKey& key, uint64_t first, double probability,
               const ConstTensorView& input, const TensorView& output) override;
  void cast_to(const ConstTensorView& input, const TensorView& output) override;
  void add(const ConstTensorView& source, const TensorView& target) override;

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
