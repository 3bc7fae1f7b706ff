#include "tutti/adapters/nn/kernels/cuda/trainer/gpu_layer_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include "tutti/adapters/nn/kernels/cuda/trainer/gpu_operands.h"
#include "tutti/base/error.h"
#include "tutti/kernels/cuda/device/range.h"

namespace tutti::cuda {

namespace {

constexpr size_t kAlignment = 256;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

cudaStream_t native(StreamRef stream) { return static_cast<cudaStream_t>(stream.native); }

// Returns the bytes of a copy of the tensor in another dtype; 0 if it has that dtype already.
size_t rounded_bytes(const ConstTensorView& tensor, DataType dtype) {
  if (tensor.view().dtype() == dtype) return 0;
  return aligned(static_cast<size_t>(tensor.view().count() * size_of(dtype)));
}

// Streams of models. A stream outlives its model, because the model's tensors may be used longer
// and the device's pool refers to their stream. The next model reuses the stream, and its work
// follows the work that is still queued there.
class ModelStreams {
 public:
  StreamRef take(DeviceRuntime& runtime, Device device) {
    {
      const std::lock_guard lock(mutex_);
      auto& free = free_[{&runtime, device.index}];
      if (!free.empty()) {
        const auto stream = free.back();
        free.pop_back();
        return stream;
      }
    }
    return runtime.create_stream(device);
  }
  void give_back(DeviceRuntime& runtime, Device device, StreamRef stream) {
    const std::lock_guard lock(mutex_);
    free_[{&runtime, device.index}].push_back(stream);
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<DeviceRuntime*, int>, std::vector<StreamRef>> free_;
};

ModelStreams& model_streams() {
  static auto& streams = *new ModelStreams;
  return streams;
}

// Describes a row-major [rows, columns] matrix to cuBLASLt, for which its rows are columns.
Matrix matrix_of(const void* data, DataType dtype, int64_t rows, int64_t columns,
                 bool is_transposed = false) {
  return {const_cast<void*>(data), dtype, columns, rows, columns, is_transposed};
}

int64_t alignment_of(std::initializer_list<const void*> all) {
  uintptr_t bits = 16;
  for (const void* one : all) bits |= reinterpret_cast<uintptr_t>(one);
  return static_cast<int64_t>(bits & -bits);
}

}  // namespace

GpuLayerKernels::GpuLayerKernels(Device device, GpuMachine machine)
    : device_(device),
      machine_(std::move(machine)),
      stream_(model_streams().take(*machine_.runtime, device)) {}

GpuLayerKernels::~GpuLayerKernels() {
  for (const auto& [stream, scratch] : scratch_) machine_.runtime->free(scratch.memory, device_);
  model_streams().give_back(*machine_.runtime, device_, stream_);
}

// --- memory --------------------------------------------------------------------------------------

Tensor GpuLayerKernels::make_tensor(const Shape& shape, DataType dtype, StreamRef stream) {
  auto& runtime = *machine_.runtime;
  const auto bytes = static_cast<size_t>(shape.count() * size_of(dtype));
  void* memory = runtime.allocate_on(std::max<size_t>(bytes, 1), device_, stream);
  return {TensorView(memory, shape, dtype, device_, stream),
          std::shared_ptr<void>(memory, [&runtime, device = device_](void* pointer) {
            runtime.free(pointer, device);
          })};
}

Tensor GpuLayerKernels::upload(const Tensor& host, StreamRef stream) {
  const Range range("upload");
  if (host.device().kind != DeviceKind::cpu)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format(
            "a tensor on {} is copied to {} only through the host: pass on_host() of the tensor",
            to_string(host.device()), to_string(device_)));
  auto& runtime = *machine_.runtime;
  auto tensor = make_tensor(host.shape(), host.dtype(), stream);
  const auto bytes = static_cast<size_t>(host.bytes());
  if (bytes == 0) return tensor;
  // The copy goes through pinned memory, so that the caller need not wait and may reuse its memory.
  void* pinned = runtime.allocate_host(bytes);
  std::memcpy(pinned, host.data(), bytes);
  runtime.copy(tensor.data(), pinned, bytes, stream);
  runtime.host_function(stream, [&runtime, pinned] { runtime.free_host(pinned); });
  return tensor;
}

void GpuLayerKernels::fill_zero(const TensorView& tensor) {
  const GpuOperands operands("zero", device_);
  launch(ZeroElements{{tensor.count()}, operands.of<float>(tensor)}, tensor.stream());
}

std::byte* GpuLayerKernels::scratch(Use use, size_t bytes, StreamRef stream) {
  auto& place = scratch_[{stream.native, use}];
  if (place.memory != nullptr && place.bytes >= bytes) return place.memory;
  auto& runtime = *machine_.runtime;
  runtime.free(std::exchange(place, Scratch{}).memory, device_);
  place.memory =
      static_cast<std::byte*>(runtime.allocate_on(std::max<size_t>(bytes, 1), device_, stream));
  place.bytes = bytes;
  return place.memory;
}

const void* GpuLayerKernels::rounded(const ConstTensorView& tensor, DataType dtype, std::byte** to,
                                     StreamRef stream) {
  const auto& view = tensor.view();
  if (view.dtype() == dtype) return view.data();
  auto* copy = std::exchange(*to, *to + rounded_bytes(tensor, dtype));
  cast_to(tensor, TensorView(copy, view.shape(), dtype, device_, stream));
  return copy;
}

// --- products ------------------------------------------------------------------------------------

Products& GpuLayerKernels::products() {
  machine_.runtime->make_current(device_);
  if (products_ == nullptr) {
    cublaslt_ = machine_.cublaslt();
    products_ = std::make_unique<Products>(cublaslt_, ProductOptions{});
  }
  return *products_;
}

void GpuLayerKernels::multiply(const Product& product, StreamRef stream) {
  auto& all = products();
  const size_t workspace = all.workspace_bytes(product);
  all.multiply(product, scratch(Use::workspace, workspace, stream), native(stream));
}

// Row-major Y[rows, outputs] = X W^T is column-major D[outputs, rows] = W^T^T X^T; the other
// products are expressed in the same way.
void GpuLayerKernels::linear_forward(const ConstTensorView& input, const ConstTensorView& weight,
                                     const ConstTensorView& bias, const TensorView& output) {
  const Range range("linear forward");
  const auto s = linear_shape(input.view().shape(), weight.view().shape());
  require_shape("linear", "output", output,
                linear_output(input.view().shape(), weight.view().shape()));
  const bool has_bias = bias.view().count() > 0;
  if (has_bias) require_shape("linear", "bias", bias.view(), Shape{s.outputs});
  const GpuOperands operands("linear", device_);
  const auto dtype = operands.float_type(input), to = operands.float_type(output);
  operands.float_type(weight);
  operands.float_type(bias);
  if (s.rows == 0) return;
  const auto stream = output.stream();
  auto* copies =
      scratch(Use::copies, rounded_bytes(weight, dtype) + rounded_bytes(bias, to), stream);
  Product product;
  product.a = matrix_of(rounded(weight, dtype, &copies, stream), dtype, s.outputs, s.inputs, true);
  product.b = matrix_of(input.view().data(), dtype, s.rows, s.inputs);
  product.d = matrix_of(output.data(), to, s.rows, s.outputs);
  if (has_bias) product.bias = rounded(bias, to, &copies, stream);
  multiply(product, stream);
}

void GpuLayerKernels::linear_backward_input(const ConstTensorView& weight,
                                            const ConstTensorView& output_gradient,
                                            const TensorView& input_gradient) {
  const Range range("linear input gradient");
  const auto s = linear_shape(input_gradient.shape(), weight.view().shape());
  require_shape("linear", "gradient of the output", output_gradient.view(),
                linear_output(input_gradient.shape(), weight.view().shape()));
  const GpuOperands operands("linear", device_);
  const auto dtype = operands.float_type(output_gradient), to = operands.float_type(input_gradient);
  operands.float_type(weight);
  if (s.rows == 0) return;
  const auto stream = input_gradient.stream();
  auto* copies = scratch(Use::copies, rounded_bytes(weight, dtype), stream);
  Product product;
  product.a = matrix_of(rounded(weight, dtype, &copies, stream), dtype, s.outputs, s.inputs);
  product.b = matrix_of(output_gradient.view().data(), dtype, s.rows, s.outputs);
  product.d = matrix_of(input_gradient.data(), to, s.rows, s.inputs);
  multiply(product, stream);
}

void GpuLayerKernels::linear_backward_weights(const ConstTensorView& input,
                                              const ConstTensorView& output_gradient,
                                              const TensorView& weight_gradient,
                                              const TensorView& bias_gradient) {
  const Range range("linear weight gradient");
  const auto s = linear_shape(input.view().shape(), weight_gradient.shape());
  require_shape("linear", "gradient of the output", output_gradient.view(),
                linear_output(input.view().shape(), weight_gradient.shape()));
  const bool has_bias = bias_gradient.count() > 0;
  if (has_bias) require_shape("linear", "gradient of the bias", bias_gradient, Shape{s.outputs});
  const GpuOperands operands("linear", device_);
  const auto dtype = operands.float_type(output_gradient);
  operands.float_type(input);
  auto* weights = operands.of<float>(weight_gradient);
  if (s.rows == 0) return;
  const auto stream = weight_gradient.stream();
  auto* copies = scratch(Use::copies, rounded_bytes(input, dtype), stream);
  Product product;
  product.a = matrix_of(rounded(input, dtype, &copies, stream), dtype, s.rows, s.inputs);
  product.b = matrix_of(output_gradient.view().data(), dtype, s.rows, s.outputs, true);
  product.d = matrix_of(weights, DataType::f32, s.outputs, s.inputs);
  product.beta = 1;
  multiply(product, stream);
  if (!has_bias) return;
  by_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    sum_columns<T>(s.rows, s.outputs, output_gradient.view().as<T>(), nullptr, nullptr, nullptr,
                   operands.of<float>(bias_gradient), stream);
  });
}

// --- convolutions --------------------------------------------------------------------------------

Convolutions& GpuLayerKernels::convolutions() {
  machine_.runtime->make_current(device_);
  if (convolutions_ == nullptr) {
    cudnn_ = machine_.cudnn();
    convolutions_ = std::make_unique<Convolutions>(cudnn_, ConvolutionPlanOptions{});
  }
  return *convolutions_;
}

void GpuLayerKernels::convolve(ConvolutionPass pass, const ConvolutionShape& shape, DataType dtype,
                               const void* image, const void* weight, const void* output,
                               StreamRef stream) {
  auto& all = convolutions();
  const auto& plan = all.plan(pass, shape, dtype, alignment_of({image, weight, output}));
  const auto workspace = static_cast<size_t>(Convolutions::workspace_bytes(plan));
  all.execute(plan, image, weight, output, scratch(Use::workspace, workspace, stream),
              native(stream));
}

void GpuLayerKernels::convolution_forward(const ConvolutionOptions& options,
                                          const ConstTensorView& input,
                                          const ConstTensorView& weight,
                                          const ConstTensorView& bias, const TensorView& output) {
  const Range range("convolution forward");
  const auto s = convolution_shape(options, input.view().shape(), weight.view().shape());
  require_shape("convolution", "output", output, convolution_output(s));
  const bool has_bias = bias.view().count() > 0;
  if (has_bias) require_shape("convolution", "bias", bias.view(), Shape{s.output_channels});
  const GpuOperands operands("convolution", device_);
  const auto dtype = operands.float_type(input);
  operands.float_type(weight);
  operands.require(output, dtype);
  if (s.batch == 0) return;
  const auto stream = output.stream();
  auto* copies = scratch(Use::copies, rounded_bytes(weight, dtype), stream);
  convolve(ConvolutionPass::forward, s, dtype, input.view().data(),
           rounded(weight, dtype, &copies, stream), output.data(), stream);
  if (!has_bias) return;
  const auto windows = s.output();
  by_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    launch(AddBias<T>{{output.count()},
                      s.output_channels,
                      windows[0] * windows[1] * windows[2],
                      operands.of<float>(bias),
                      output.as<T>()},
           stream);
  });
}

void GpuLayerKernels::convolution_backward_input(const ConvolutionOptions& options,
                                                 const ConstTensorView& weight,
                                                 const ConstTensorView& output_gradient,
                                                 const TensorView& input_gradient) {
  const Range range("convolution input gradient");
  const auto s = convolution_shape(options, input_gradient.shape(), weight.view().shape());
  require_shape("convolution", "gradient of the output", output_gradient.view(),
                convolution_output(s));
  const GpuOperands operands("convolution", device_);
  const auto dtype = operands.float_type(output_gradient);
  operands.float_type(weight);
  operands.require(input_gradient, dtype);
  if (s.batch == 0) return;
  const auto stream = input_gradient.stream();
  auto* copies = scratch(Use::copies, rounded_bytes(weight, dtype), stream);
  convolve(ConvolutionPass::backward_input, s, dtype, input_gradient.data(),
           rounded(weight, dtype, &copies, stream), output_gradient.view().data(), stream);
}

void GpuLayerKernels::convolution_backward_weights(const ConvolutionOptions& options,
                                                   const ConstTensorView& input,
                                                   const ConstTensorView& output_gradient,
                                                   const TensorView& weight_gradient,
                                                   const TensorView& bias_gradient) {
  const Range range("convolution weight gradient");
  const auto s = convolution_shape(options, input.view().shape(), weight_gradient.shape());
  require_shape("convolution", "gradient of the output", output_gradient.view(),
                convolution_output(s));
  const bool has_bias = bias_gradient.count() > 0;
  if (has_bias)
    require_shape("convolution", "gradient of the bias", bias_gradient, Shape{s.output_channels});
  const GpuOperands operands("convolution", device_);
  const auto dtype = operands.float_type(input);
  operands.require(output_gradient, dtype);
  auto* weights = operands.of<float>(weight_gradient);
  if (s.batch == 0) return;
  const auto stream = weight_gradient.stream();
  // cuDNN overwrites its output and writes it in the input's dtype, so this batch's gradient is
  // added afterwards.
  const auto bytes = static_cast<size_t>(weight_gradient.count() * size_of(dtype));
  auto* batch = scratch(Use::copies, bytes, stream);
  convolve(ConvolutionPass::backward_weights, s, dtype, input.view().data(), batch,
           output_gradient.view().data(), stream);
  const auto windows = s.output();
  by_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    launch(
        AddElements<T, float>{
            {weight_gradient.count()}, reinterpret_cast<const T*>(batch), weights},
        stream);
    if (has_bias)
      launch(ChannelSums<T>{{s.batch, s.output_channels, windows[0] * windows[1] * windows[2]},
                            output_gradient.view().as<T>(),
                            operands.of<float>(bias_gradient)},
             stream);
  });
}

}  // namespace tutti::cuda
