// Windows, elements and losses of GpuLayerKernels.

#include "tutti/adapters/nn/kernels/cuda/trainer/gpu_layer_kernels.h"
#include "tutti/adapters/nn/kernels/cuda/trainer/gpu_operands.h"
#include "tutti/kernels/cuda/device/range.h"

namespace tutti::cuda {

namespace {

struct LabelledRows {
  int64_t batch = 0, classes = 0;
  const int64_t* labels = nullptr;
};

LabelledRows labelled_rows(const char* loss, Device device, const ConstTensorView& rows,
                           const ConstTensorView& labels) {
  const auto& shape = rows.view().shape();
  const auto& all = labels.view();
  if (shape.rank() != 2 || shape[1] < 1 || all.dtype() != DataType::i64 ||
      all.shape() != Shape{shape[0]})
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("{} got logits {} and labels {}{}; expected "
                    "[batch, classes] and i64[batch]",
                    loss, shape.to_string(), to_string(all.dtype()), all.shape().to_string()));
  return {shape[0], shape[1], GpuOperands(loss, device).of<int64_t>(labels)};
}

// Returns the shape [batch, elements per row].
ChannelsShape flat_rows(const char* layer, const ConstTensorView& view) {
  const auto& shape = view.view().shape();
  if (shape.rank() < 1 || shape.row_count() < 1)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} cannot take {}; expected [batch, ...] with at least one element a "
                            "row",
                            layer, shape.to_string()));
  return {shape[0], shape.row_count(), 1};
}

PoolingWindows windows_of(const PoolingShape& s) {
  if (s.options.kernel > kMostPoolingKernel)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("pooling on a GPU got a kernel of {}; expected at most {}",
                            s.options.kernel, kMostPoolingKernel));
  return {s.height,         s.width,          s.output_height(), s.output_width(),
          s.options.kernel, s.options.stride, s.options.padding};
}

}  // namespace

// --- windows -------------------------------------------------------------------------------------

int64_t GpuLayerKernels::pooling_workspace_bytes(const PoolingOptions& options,
                                                 const Shape& input) {
  const auto s = pooling_shape(options, input);
  return options.pooling == Pooling::max ? pooling_output(s).count() : 0;
}

void GpuLayerKernels::pooling_forward(const PoolingOptions& options, const ConstTensorView& input,
                                      const TensorView& output, const TensorView& workspace) {
  const Range range("pooling forward");
  const auto s = pooling_shape(options, input.view().shape());
  require_shape("pooling", "output", output, pooling_output(s));
  require_shape("pooling", "workspace", workspace,
                Shape{pooling_workspace_bytes(options, input.view().shape())});
  const GpuOperands operands("pooling", device_);
  const auto dtype = operands.float_type(input);
  auto* places = options.pooling == Pooling::max ? operands.of<uint8_t>(workspace) : nullptr;
  by_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    launch(
        PoolingForward<T>{
            {output.count()}, windows_of(s), input.view().as<T>(), operands.of<T>(output), places},
        output.stream());
  });
}

void GpuLayerKernels::pooling_backward(const PoolingOptions& options,
                                       const ConstTensorView& output_gradient,
                                       const ConstTensorView& workspace,
                                       const TensorView& input_gradient) {
  const Range range("pooling backward");
  const auto s = pooling_shape(options, input_gradient.shape());
  require_shape("pooling", "gradient of the output", output_gradient.view(), pooling_output(s));
  require_shape("pooling", "workspace", workspace.view(),
                Shape{pooling_workspace_bytes(options, input_gradient.shape())});
  const GpuOperands operands("pooling", device_);
  const auto dtype = operands.float_type(output_gradient);
  const auto* places = options.pooling == Pooling::max ? operands.of<uint8_t>(workspace) : nullptr;
  by_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    launch(PoolingBackward<T>{{input_gradient.count()},
                              windows_of(s),
                              output_gradient.view().as<T>(),
                              places,
                              operands.of<T>(input_gradient)},
           input_gradient.stream());
  });
}

void GpuLayerKernels::global_average_forward(const ConstTensorView& input,
                                             const TensorView& output) {
  const Range range("global average forward");
  const auto s = channels_shape("global average", input.view().shape());
  require_shape("global average", "output", output, Shape{s.batch, s.channels});
  const GpuOperands operands("global average", device_);
  by_type(operands.float_type(input), [&](auto zero) {
    using T = decltype(zero);
    launch(RowSums<T, T>{RowSum::values, s.batch * s.channels, s.positions, input.view().as<T>(),
                         nullptr, operands.of<T>(output)},
           output.stream());
  });
}

void GpuLayerKernels::global_average_backward(const ConstTensorView& output_gradient,
                                              const TensorView& input_gradient) {
  const Range range("global average backward");
  const auto s = channels_shape("global average", input_gradient.shape());
  require_shape("global average", "gradient of the output", output_gradient.view(),
                Shape{s.batch, s.channels});
  const GpuOperands operands("global average", device_);
  by_type(operands.float_type(output_gradient), [&](auto zero) {
    using T = decltype(zero);
    launch(GlobalAverageBackward<T>{{input_gradient.count()},
                                    s.positions,
                                    output_gradient.view().as<T>(),
                                    operands.of<T>(input_gradient)},
           input_gradient.stream());
  });
}

// --- elements ------------------------------------------------------------------------------------

void GpuLayerKernels::activation_forward(Activation activation, const ConstTensorView& input,
                                         const TensorView& output) {
  const Range range("activation forward");
  require_shape("activation", "output", output, input.view().shape());
  const GpuOperands operands("activation", device_);
  by_type(operands.float_type(input), [&](auto zero) {
    using T = decltype(zero);
    launch(
        ActivationForward<T>{
            {output.count()}, activation, input.view().as<T>(), operands.of<T>(output)},
        output.stream());
  });
}

void GpuLayerKernels::activation_backward(Activation activation, const ConstTensorView& kept,
                                          const ConstTensorView& output_gradient,
                                          const TensorView& input_gradient) {
  const Range range("activation backward");
  require_shape("activation", "gradient of the output", output_gradient.view(),
                kept.view().shape());
  require_shape("activation", "gradient of the input", input_gradient, kept.view().shape());
  const GpuOperands operands("activation", device_);
  by_type(operands.float_type(kept), [&](auto zero) {
    using T = decltype(zero);
    launch(ActivationBackward<T>{{input_gradient.count()},
                                 activation,
                                 kept.view().as<T>(),
                                 operands.of<T>(output_gradient),
                                 operands.of<T>(input_gradient)},
           input_gradient.stream());
  });
}

void GpuLayerKernels::dropout(const RandomKey& key, uint64_t first, double probability,
                              const ConstTensorView& input, const TensorView& output) {
  const Range range("dropout");
  require_shape("dropout", "output", output, input.view().shape());
  if (!(probability >= 0 && probability < 1))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("dropout's probability is {}; expected 0 to below 1", probability));
  const GpuOperands operands("dropout", device_);
  by_type(operands.float_type(input), [&](auto zero) {
    using T = decltype(zero);
    launch(Dropout<T>{output.count(), first, key.seed, key.step, key.purpose,
                      static_cast<uint32_t>(probability * 0x1p24),
                      static_cast<float>(1 / (1 - probability)), input.view().as<T>(),
                      operands.of<T>(output)},
           output.stream());
  });
}

void GpuLayerKernels::cast_to(const ConstTensorView& input, const TensorView& output) {
  const Range range("cast");
  require_shape("cast", "output", output, input.view().shape());
  const GpuOperands operands("cast", device_);
  const auto to = operands.float_type(output);
  by_type(operands.float_type(input), [&](auto source) {
    by_type(to, [&](auto target) {
      using From = decltype(source);
      using To = decltype(target);
      launch(CastElements<From, To>{{output.count()}, input.view().as<From>(), output.as<To>()},
             output.stream());
    });
  });
}

void GpuLayerKernels::add(const ConstTensorView& source, const TensorView& target) {
  const Range range("add");
  require_shape("add", "source", source.view(), target.shape());
  const GpuOperands operands("add", device_);
  const auto to = operands.float_type(target);
  by_type(operands.float_type(source), [&](auto from) {
    by_type(to, [&](auto sum) {
      using From = decltype(from);
      using To = decltype(sum);
      launch(AddElements<From, To>{{target.count()}, source.view().as<From>(), target.as<To>()},
             target.stream());
    });
  });
}

void GpuLayerKernels::row_products_forward(const ConstTensorView& a, const ConstTensorView& b,
                                           const TensorView& output) {
  const Range range("row products forward");
  const auto rows = flat_rows("row products", a);
  require_shape("row products", "second factor", b.view(), a.view().shape());
  require_shape("row products", "output", output, Shape{rows.batch, 1});
  const GpuOperands operands("row products", device_);
  by_type(operands.float_type(a), [&](auto zero) {
    using T = decltype(zero);
    launch(RowSums<T, T>{RowSum::products, rows.batch, rows.channels, a.view().as<T>(),
                         operands.of<T>(b), operands.of<T>(output)},
           output.stream());
  });
}

void GpuLayerKernels::row_products_backward(const ConstTensorView& b,
                                            const ConstTensorView& output_gradient,
                                            const TensorView& a_gradient) {
  const Range range("row products backward");
  const auto rows = flat_rows("row products", b);
  require_shape("row products", "gradient of the output", output_gradient.view(),
                Shape{rows.batch, 1});
  require_shape("row products", "gradient of the factor", a_gradient, b.view().shape());
  const GpuOperands operands("row products", device_);
  by_type(operands.float_type(b), [&](auto zero) {
    using T = decltype(zero);
    launch(RowProductsBackward<T>{{a_gradient.count()},
                                  rows.channels,
                                  b.view().as<T>(),
                                  operands.of<T>(output_gradient),
                                  operands.of<T>(a_gradient)},
           a_gradient.stream());
  });
}

// --- losses --------------------------------------------------------------------------------------

void GpuLayerKernels::softmax_cross_entropy_forward(const ConstTensorView& logits,
                                                    const ConstTensorView& labels,
                                                    const TensorView& log_probabilities,
                                                    const TensorView& losses) {
  const Range range("cross entropy forward");
  const auto rows = labelled_rows("softmax cross-entropy", device_, logits, labels);
  require_shape("softmax cross-entropy", "result", log_probabilities, logits.view().shape());
  require_shape("softmax cross-entropy", "loss", losses, Shape{rows.batch});
  const GpuOperands operands("softmax cross-entropy", device_);
  by_type(operands.float_type(logits), [&](auto zero) {
    using T = decltype(zero);
    launch(
        SoftmaxForward<T, float>{rows.batch, rows.classes, logits.view().as<T>(), rows.labels,
                                 operands.of<float>(log_probabilities), operands.of<float>(losses)},
        losses.stream());
  });
}

void GpuLayerKernels::softmax_cross_entropy_backward(const ConstTensorView& log_probabilities,
                                                     const ConstTensorView& labels, float scale,
                                                     const TensorView& logit_gradient) {
  const Range range("cross entropy backward");
  const auto rows = labelled_rows("softmax cross-entropy", device_, log_probabilities, labels);
  require_shape("softmax cross-entropy", "gradient of the logits", logit_gradient,
                log_probabilities.view().shape());
  const GpuOperands operands("softmax cross-entropy", device_);
  by_type(operands.float_type(logit_gradient), [&](auto zero) {
    using T = decltype(zero);
    launch(CrossEntropyBackward<T>{rows.batch, rows.classes, operands.of<float>(log_probabilities),
                                   rows.labels, scale, logit_gradient.as<T>()},
           logit_gradient.stream());
  });
}

void GpuLayerKernels::negative_log_likelihood_forward(const ConstTensorView& input,
                                                      const ConstTensorView& labels,
                                                      const TensorView& losses) {
  const Range range("negative log likelihood forward");
  const auto rows = labelled_rows("negative log likelihood", device_, input, labels);
  require_shape("negative log likelihood", "loss", losses, Shape{rows.batch});
  const GpuOperands operands("negative log likelihood", device_);
  by_type(operands.float_type(input), [&](auto zero) {
    using T = decltype(zero);
    launch(LikelihoodForward<T>{rows.batch, rows.classes, input.view().as<T>(), rows.labels,
                                operands.of<float>(losses)},
           losses.stream());
  });
}

void GpuLayerKernels::negative_log_likelihood_backward(const ConstTensorView& labels, float scale,
                                                       const TensorView& input_gradient) {
  const Range range("negative log likelihood backward");
  const auto rows = labelled_rows("negative log likelihood", device_, input_gradient, labels);
  const GpuOperands operands("negative log likelihood", device_);
  by_type(operands.float_type(input_gradient), [&](auto zero) {
    using T = decltype(zero);
    launch(
        LikelihoodBackward<T>{rows.batch, rows.classes, rows.labels, scale, input_gradient.as<T>()},
        input_gradient.stream());
  });
}

void GpuLayerKernels::squared_error_forward(const ConstTensorView& input,
                                            const ConstTensorView& target,
                                            const TensorView& losses) {
  const Range range("squared error forward");
  require_shape("squared error", "target", target.view(), input.view().shape());
  const auto rows = flat_rows("squared error", input);
  require_shape("squared error", "loss", losses, Shape{rows.batch});
  const GpuOperands operands("squared error", device_);
  by_type(operands.float_type(input), [&](auto zero) {
    using T = decltype(zero);
    launch(
        RowSums<T, float>{RowSum::squared_errors, rows.batch, rows.channels, input.view().as<T>(),
                          operands.of<T>(target), operands.of<float>(losses)},
        losses.stream());
  });
}

void GpuLayerKernels::squared_error_backward(const ConstTensorView& input,
                                             const ConstTensorView& target, float scale,
                                             const TensorView& input_gradient) {
  const Range range("squared error backward");
  require_shape("squared error", "target", target.view(), input.view().shape());
  const auto rows = flat_rows("squared error", input);
  require_shape("squared error", "gradient of the input", input_gradient, input.view().shape());
  const GpuOperands operands("squared error", device_);
  by_type(operands.float_type(input), [&](auto zero) {
    using T = decltype(zero);
    launch(
        SquaredErrorBackward<T>{rows.batch, rows.channels,
                                2 * scale / static_cast<float>(rows.channels), input.view().as<T>(),
                                operands.of<T>(target), operands.of<T>(input_gradient)},
        input_gradient.stream());
  });
}

}  // namespace tutti::cuda
