// Norms, log softmax, embeddings and recurrences of GpuLayerKernels.

#include <cmath>

#include "tutti/adapters/nn/kernels/cuda/trainer/gpu_layer_kernels.h"
#include "tutti/adapters/nn/kernels/cuda/trainer/gpu_operands.h"
#include "tutti/kernels/cuda/device/range.h"

namespace tutti::cuda {

namespace {

Channels channels_of(const ChannelsShape& s) { return {s.batch, s.channels, s.positions}; }

void require_each(const ChannelsShape& s,
                  std::initializer_list<std::pair<const char*, const TensorView*>> views) {
  for (const auto& [name, view] : views)
    require_shape("batch norm", name, *view, Shape{s.channels});
}

double* moments_in(const GpuOperands& operands, const TensorView& moments, int64_t channels) {
  require_shape("batch norm", "moments", moments, Shape{1 + 2 * channels});
  return operands.of<double>(moments);
}

// Returns {rows, features} of a tensor [..., features].
std::pair<int64_t, int64_t> rows_of(const char* layer, const char* wanted, const TensorView& view) {
  const auto& shape = view.shape();
  const int64_t features = shape.rank() >= 1 ? shape[shape.rank() - 1] : 0;
  if (features < 1)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} cannot take {}; expected {}", layer, shape.to_string(), wanted));
  return {view.count() / features, features};
}

constexpr const char* kClasses = "[..., classes] with at least one class";
constexpr const char* kFeatures = "[..., features] with at least one feature";

struct EmbeddingRows {
  int64_t rows, features, count;
  const int64_t* indices;
};

EmbeddingRows embedding_rows(const GpuOperands& operands, const TensorView& indices,
                             const Shape& table, const TensorView& output) {
  std::vector<int64_t> extents(indices.shape().extents().begin(), indices.shape().extents().end());
  if (indices.dtype() != DataType::i64 || table.rank() != 2)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("embedding got indices {}{} and a table {}; expected i64[...] and "
                    "[rows, features]",
                    to_string(indices.dtype()), indices.shape().to_string(), table.to_string()));
  extents.push_back(table[1]);
  require_shape("embedding", "output", output, Shape(extents));
  return {table[0], table[1], indices.count(), operands.of<int64_t>(indices)};
}

}  // namespace

// --- batch norm ----------------------------------------------------------------------------------

void GpuLayerKernels::batch_norm_moments(const ConstTensorView& input, const TensorView& moments) {
  const Range range("batch norm moments");
  const auto s = channels_shape("batch norm", input.view().shape());
  const GpuOperands operands("batch norm", device_);
  auto* sums = moments_in(operands, moments, s.channels);
  by_type(operands.float_type(input), [&](auto zero) {
    using T = decltype(zero);
    sum_channels<T>(channels_of(s), input.view().as<T>(), nullptr, nullptr, nullptr, sums,
                    moments.stream());
  });
}

void GpuLayerKernels::batch_norm_statistics(const ConstTensorView& moments, double epsilon,
                                            double momentum, const TensorView& mean,
                                            const TensorView& inverse_deviation,
                                            const TensorView& running_mean,
                                            const TensorView& running_variance) {
  const ChannelsShape s{0, mean.count(), 0};
  const GpuOperands operands("batch norm", device_);
  const auto* sums = moments_in(operands, moments.view(), s.channels);
  require_each(s, {{"inverse deviation", &inverse_deviation},
                   {"running mean", &running_mean},
                   {"running variance", &running_variance}});
  launch(BatchNormStatistics{{s.channels},
                             sums,
                             epsilon,
                             momentum,
                             operands.of<float>(mean),
                             operands.of<float>(inverse_deviation),
                             operands.of<float>(running_mean),
                             operands.of<float>(running_variance)},
         mean.stream());
}

void GpuLayerKernels::batch_norm_running_statistics(const ConstTensorView& running_mean,
                                                    const ConstTensorView& running_variance,
                                                    double epsilon, const TensorView& mean,
                                                    const TensorView& inverse_deviation) {
  const ChannelsShape s{0, mean.count(), 0};
  const GpuOperands operands("batch norm", device_);
  require_each(s, {{"inverse deviation", &inverse_deviation},
                   {"running mean", &running_mean.view()},
                   {"running variance", &running_variance.view()}});
  launch(BatchNormStatistics{{s.channels},
                             nullptr,
                             epsilon,
                             0,
                             operands.of<float>(mean),
                             operands.of<float>(inverse_deviation),
                             operands.of<float>(running_mean.view()),
                             operands.of<float>(running_variance.view())},
         mean.stream());
}

void GpuLayerKernels::batch_norm_forward(const ConstTensorView& input, const ConstTensorView& mean,
                                         const ConstTensorView& inverse_deviation,
                                         const ConstTensorView& weight, const ConstTensorView& bias,
                                         const TensorView& output) {
  const Range range("batch norm forward");
  const auto s = channels_shape("batch norm", input.view().shape());
  require_shape("batch norm", "output", output, input.view().shape());
  require_each(s, {{"mean", &mean.view()},
                   {"inverse deviation", &inverse_deviation.view()},
                   {"weight", &weight.view()},
                   {"bias", &bias.view()}});
  const GpuOperands operands("batch norm", device_);
  by_type(operands.float_type(input), [&](auto zero) {
    using T = decltype(zero);
    launch(BatchNormForward<T>{{{output.count()}, channels_of(s)},
                               input.view().as<T>(),
                               operands.of<float>(mean),
                               operands.of<float>(inverse_deviation),
                               operands.of<float>(weight),
                               operands.of<float>(bias),
                               operands.of<T>(output)},
           output.stream());
  });
}

void GpuLayerKernels::batch_norm_backward_moments(const ConstTensorView& input,
                                                  const ConstTensorView& mean,
                                                  const ConstTensorView& inverse_deviation,
                                                  const ConstTensorView& output_gradient,
                                                  const TensorView& moments) {
  const Range range("batch norm backward moments");
  const auto s = channels_shape("batch norm", input.view().shape());
  require_shape("batch norm", "gradient of the output", output_gradient.view(),
                input.view().shape());
  require_each(s, {{"mean", &mean.view()}, {"inverse deviation", &inverse_deviation.view()}});
  const GpuOperands operands("batch norm", device_);
  auto* sums = moments_in(operands, moments, s.channels);
  by_type(operands.float_type(input), [&](auto zero) {
    using T = decltype(zero);
    sum_channels<T>(channels_of(s), input.view().as<T>(), operands.of<T>(output_gradient),
                    operands.of<float>(mean), operands.of<float>(inverse_deviation), sums,
                    moments.stream());
  });
}

void GpuLayerKernels::batch_norm_backward_input(const ConstTensorView& input,
                                                const ConstTensorView& mean,
                                                const ConstTensorView& inverse_deviation,
                                                const ConstTensorView& weight,
                                                const ConstTensorView& output_gradient,
                                                const ConstTensorView& moments,
                                                const TensorView& input_gradient) {
  const Range range("batch norm input gradient");
  const auto s = channels_shape("batch norm", input.view().shape());
  require_shape("batch norm", "gradient of the output", output_gradient.view(),
                input.view().shape());
  require_shape("batch norm", "gradient of the input", input_gradient, input.view().shape());
  require_each(s, {{"mean", &mean.view()},
                   {"inverse deviation", &inverse_deviation.view()},
                   {"weight", &weight.view()}});
  const GpuOperands operands("batch norm", device_);
  const double* sums =
      moments.view().count() > 0 ? moments_in(operands, moments.view(), s.channels) : nullptr;
  by_type(operands.float_type(input), [&](auto zero) {
    using T = decltype(zero);
    launch(BatchNormBackward<T>{{{input_gradient.count()}, channels_of(s)},
                                input.view().as<T>(),
                                operands.of<float>(mean),
                                operands.of<float>(inverse_deviation),
                                operands.of<float>(weight),
                                operands.of<T>(output_gradient),
                                sums,
                                operands.of<T>(input_gradient)},
           input_gradient.stream());
  });
}

void GpuLayerKernels::batch_norm_backward_weights(const ConstTensorView& moments,
                                                  const TensorView& weight_gradient,
                                                  const TensorView& bias_gradient) {
  const ChannelsShape s{0, weight_gradient.count(), 0};
  require_each(s, {{"gradient of the bias", &bias_gradient}});
  const GpuOperands operands("batch norm", device_);
  launch(BatchNormWeights{{s.channels},
                          moments_in(operands, moments.view(), s.channels),
                          operands.of<float>(weight_gradient),
                          operands.of<float>(bias_gradient)},
         weight_gradient.stream());
}

// --- rows ----------------------------------------------------------------------------------------

void GpuLayerKernels::layer_norm_forward(double epsilon, const ConstTensorView& input,
                                         const ConstTensorView& weight, const ConstTensorView& bias,
                                         const TensorView& output, const TensorView& statistics) {
  const Range range("layer norm forward");
  const auto [rows, features] = rows_of("layer norm", kFeatures, input.view());
  require_shape("layer norm", "statistics", statistics, Shape{rows, 2});
  require_shape("layer norm", "output", output, input.view().shape());
  require_shape("layer norm", "weight", weight.view(), Shape{features});
  require_shape("layer norm", "bias", bias.view(), Shape{features});
  const GpuOperands operands("layer norm", device_);
  by_type(operands.float_type(input), [&, r = rows, f = features](auto zero) {
    using T = decltype(zero);
    launch(LayerNormForward<T>{{r, f},
                               epsilon,
                               input.view().as<T>(),
                               operands.of<float>(weight),
                               operands.of<float>(bias),
                               operands.of<T>(output),
                               operands.of<float>(statistics)},
           output.stream());
  });
}

void GpuLayerKernels::layer_norm_backward_input(const ConstTensorView& input,
                                                const ConstTensorView& statistics,
                                                const ConstTensorView& weight,
                                                const ConstTensorView& output_gradient,
                                                const TensorView& input_gradient) {
  const Range range("layer norm input gradient");
  const auto [rows, features] = rows_of("layer norm", kFeatures, input.view());
  require_shape("layer norm", "statistics", statistics.view(), Shape{rows, 2});
  require_shape("layer norm", "gradient of the output", output_gradient.view(),
                input.view().shape());
  require_shape("layer norm", "gradient of the input", input_gradient, input.view().shape());
  require_shape("layer norm", "weight", weight.view(), Shape{features});
  const GpuOperands operands("layer norm", device_);
  by_type(operands.float_type(input), [&, r = rows, f = features](auto zero) {
    using T = decltype(zero);
    launch(LayerNormBackward<T>{{r, f},
                                input.view().as<T>(),
                                operands.of<float>(statistics),
                                operands.of<float>(weight),
                                operands.of<T>(output_gradient),
                                operands.of<T>(input_gradient)},
           input_gradient.stream());
  });
}

void GpuLayerKernels::layer_norm_backward_weights(const ConstTensorView& input,
                                                  const ConstTensorView& statistics,
                                                  const ConstTensorView& output_gradient,
                                                  const TensorView& weight_gradient,
                                                  const TensorView& bias_gradient) {
  const Range range("layer norm weight gradient");
  const auto [rows, features] = rows_of("layer norm", kFeatures, input.view());
  require_shape("layer norm", "statistics", statistics.view(), Shape{rows, 2});
  require_shape("layer norm", "gradient of the output", output_gradient.view(),
                input.view().shape());
  require_shape("layer norm", "gradient of the weight", weight_gradient, Shape{features});
  require_shape("layer norm", "gradient of the bias", bias_gradient, Shape{features});
  const GpuOperands operands("layer norm", device_);
  by_type(operands.float_type(input), [&, r = rows, f = features](auto zero) {
    using T = decltype(zero);
    sum_columns<T>(r, f, operands.of<T>(output_gradient), input.view().as<T>(),
                   operands.of<float>(statistics), operands.of<float>(weight_gradient),
                   operands.of<float>(bias_gradient), weight_gradient.stream());
  });
}

void GpuLayerKernels::log_softmax_forward(const ConstTensorView& input, const TensorView& output) {
  const Range range("log softmax forward");
  const auto [rows, classes] = rows_of("log softmax", kClasses, input.view());
  require_shape("log softmax", "output", output, input.view().shape());
  const GpuOperands operands("log softmax", device_);
  by_type(operands.float_type(input), [&, r = rows, c = classes](auto zero) {
    using T = decltype(zero);
    launch(
        SoftmaxForward<T, T>{r, c, input.view().as<T>(), nullptr, operands.of<T>(output), nullptr},
        output.stream());
  });
}

void GpuLayerKernels::log_softmax_backward(const ConstTensorView& output,
                                           const ConstTensorView& output_gradient,
                                           const TensorView& input_gradient) {
  const Range range("log softmax backward");
  const auto [rows, classes] = rows_of("log softmax", kClasses, output.view());
  require_shape("log softmax", "gradient of the output", output_gradient.view(),
                output.view().shape());
  require_shape("log softmax", "gradient of the input", input_gradient, output.view().shape());
  const GpuOperands operands("log softmax", device_);
  by_type(operands.float_type(output), [&, r = rows, c = classes](auto zero) {
    using T = decltype(zero);
    launch(LogSoftmaxBackward<T>{r, c, output.view().as<T>(), operands.of<T>(output_gradient),
                                 operands.of<T>(input_gradient)},
           input_gradient.stream());
  });
}

// --- sequences -----------------------------------------------------------------------------------

void GpuLayerKernels::embedding_forward(const ConstTensorView& indices,
                                        const ConstTensorView& table, const TensorView& output) {
  const Range range("embedding forward");
  const GpuOperands operands("embedding", device_);
  const auto rows = embedding_rows(operands, indices.view(), table.view().shape(), output);
  by_type(operands.float_type(output), [&](auto zero) {
    using T = decltype(zero);
    launch(EmbeddingForward<T>{{output.count()},
                               rows.rows,
                               rows.features,
                               rows.indices,
                               operands.of<float>(table),
                               output.as<T>()},
           output.stream());
  });
}

void GpuLayerKernels::embedding_backward(const ConstTensorView& indices,
                                         const ConstTensorView& output_gradient,
                                         const TensorView& table_gradient) {
  const Range range("embedding backward");
  const GpuOperands operands("embedding", device_);
  const auto rows =
      embedding_rows(operands, indices.view(), table_gradient.shape(), output_gradient.view());
  by_type(operands.float_type(output_gradient), [&](auto zero) {
    using T = decltype(zero);
    launch(EmbeddingBackward<T>{rows.rows, rows.features, rows.count, rows.indices,
                                output_gradient.view().as<T>(), operands.of<float>(table_gradient)},
           table_gradient.stream());
  });
}

void GpuLayerKernels::recurrent_forward(Recurrence, const ConstTensorView&, const ConstTensorView&,
                                        const ConstTensorView&, const TensorView&,
                                        const TensorView&) {
  throw Error(ErrorCode::unavailable,
              "recurrent layers are not computed on a GPU; keep this model on the cpu");
}

void GpuLayerKernels::recurrent_backward(Recurrence, const ConstTensorView&, const ConstTensorView&,
                                         const ConstTensorView&, const ConstTensorView&,
                                         const TensorView&, const TensorView&) {
  throw Error(ErrorCode::unavailable,
              "recurrent layers are not computed on a GPU; keep this model on the cpu");
}

}  // namespace tutti::cuda
