// Batch and layer normalisation of CpuLayerKernels. Sums over a plane or row are computed in f64
// for accuracy, and so that the sums of several ranks add up to those of the joined batch.

#include <fmt/format.h>

#include <cmath>

#include "tutti/adapters/nn/kernels/cpu/cpu_layer_kernels.h"
#include "tutti/adapters/nn/kernels/cpu/f32_operands.h"
#include "tutti/adapters/nn/kernels/cpu/row_loops.h"
#include "tutti/base/error.h"

namespace tutti {
namespace {

double* moments_of(const TensorView& moments, int64_t channels) {
  require_shape("batch norm", "moments", moments, Shape{1 + 2 * channels});
  if (moments.dtype() != DataType::f64)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("batch norm got moments in {}; expected f64", to_string(moments.dtype())));
  return moments.as<double>();
}

void require_channels(const ChannelsShape& s,
                      std::initializer_list<std::pair<const char*, const TensorView*>> views) {
  for (const auto& [name, view] : views)
    require_shape("batch norm", name, *view, Shape{s.channels});
}

// Calls body(channel, offset of the plane) for every plane of positions.
template <class Body>
void for_each_plane(const ChannelsShape& s, Body body) {
  for (int64_t n = 0; n < s.batch; ++n)
    for (int64_t c = 0; c < s.channels; ++c) body(c, (n * s.channels + c) * s.positions);
}

struct Rows {
  int64_t rows = 0;
  int64_t features = 0;
};

Rows rows_shape(const Shape& input, const TensorView& statistics) {
  const int64_t features = input.rank() >= 1 ? input[input.rank() - 1] : 0;
  if (features < 1)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("layer norm cannot take {}; expected [..., features] with at least one "
                            "feature",
                            input.to_string()));
  const int64_t rows = input.count() / features;
  require_shape("layer norm", "statistics", statistics, Shape{rows, 2});
  return {rows, features};
}

}  // namespace

void CpuLayerKernels::batch_norm_moments(const ConstTensorView& input, const TensorView& moments) {
  const auto s = channels_shape("batch norm", input.view().shape());
  double* sums = moments_of(moments, s.channels);
  std::fill_n(sums, moments.count(), 0.0);
  sums[0] = static_cast<double>(s.batch * s.positions);
  F32Operands f32("batch norm");
  const float* x = f32.read(input);
  for_each_plane(s, [&](int64_t c, int64_t at) {
    const auto [sum, squares] = sum_and_squares(x + at, s.positions);
    sums[1 + c] += sum;
    sums[1 + s.channels + c] += squares;
  });
}

void CpuLayerKernels::batch_norm_statistics(const ConstTensorView& moments, double epsilon,
                                            double momentum, const TensorView& mean,
                                            const TensorView& inverse_deviation,
                                            const TensorView& running_mean,
                                            const TensorView& running_variance) {
  const ChannelsShape s{0, mean.count(), 0};
  const double* sums = moments_of(moments.view(), s.channels);
  require_channels(s, {{"inverse deviation", &inverse_deviation},
                       {"running mean", &running_mean},
                       {"running variance", &running_variance}});
  F32Operands f32("batch norm");
  float *m = f32.exactly(mean), *r = f32.exactly(inverse_deviation);
  float *running_m = f32.exactly(running_mean), *running_v = f32.exactly(running_variance);
  const double count = sums[0];
  const auto mix = [&](float& running, double value) {
    running = static_cast<float>((1 - momentum) * running + momentum * value);
  };
  for (int64_t c = 0; c < s.channels; ++c) {
    const double average = count > 0 ? sums[1 + c] / count : 0;
    const double square = count > 0 ? sums[1 + s.channels + c] / count : 0;
    const double variance = std::max(0.0, square - average * average);
    m[c] = static_cast<float>(average);
    r[c] = static_cast<float>(1 / std::sqrt(variance + epsilon));
    if (count == 0) continue;
    mix(running_m[c], average);
    mix(running_v[c], count > 1 ? variance * count / (count - 1) : variance);
  }
}

void CpuLayerKernels::batch_norm_running_statistics(const ConstTensorView& running_mean,
                                                    const ConstTensorView& running_variance,
                                                    double epsilon, const TensorView& mean,
                                                    const TensorView& inverse_deviation) {
  const ChannelsShape s{0, mean.count(), 0};
  require_channels(s, {{"inverse deviation", &inverse_deviation},
                       {"running mean", &running_mean.view()},
                       {"running variance", &running_variance.view()}});
  F32Operands f32("batch norm");
  const float *average = f32.exactly(running_mean), *variance = f32.exactly(running_variance);
  float *m = f32.exactly(mean), *r = f32.exactly(inverse_deviation);
  for (int64_t c = 0; c < s.channels; ++c) {
    m[c] = average[c];
    r[c] = static_cast<float>(1 / std::sqrt(static_cast<double>(variance[c]) + epsilon));
  }
}

void CpuLayerKernels::batch_norm_forward(const ConstTensorView& input, const ConstTensorView& mean,
                                         const ConstTensorView& inverse_deviation,
                                         const ConstTensorView& weight, const ConstTensorView& bias,
                                         const TensorView& output) {
  const auto s = channels_shape("batch norm", input.view().shape());
  require_shape("batch norm", "output", output, input.view().shape());
  require_channels(s, {{"mean", &mean.view()},
                       {"inverse deviation", &inverse_deviation.view()},
                       {"weight", &weight.view()},
                       {"bias", &bias.view()}});
  F32Operands f32("batch norm");
  const float *x = f32.read(input), *m = f32.exactly(mean), *r = f32.exactly(inverse_deviation);
  const float *w = f32.read(weight), *b = f32.read(bias);
  float* y = f32.write(output);
  for_each_plane(s, [&](int64_t c, int64_t at) {
    scale_plane(x + at, m[c], r[c] * w[c], b[c], y + at, s.positions);
  });
  f32.finish();
}

void CpuLayerKernels::batch_norm_backward_moments(const ConstTensorView& input,
                                                  const ConstTensorView& mean,
                                                  const ConstTensorView& inverse_deviation,
                                                  const ConstTensorView& output_gradient,
                                                  const TensorView& moments) {
  const auto s = channels_shape("batch norm", input.view().shape());
  require_shape("batch norm", "gradient of the output", output_gradient.view(),
                input.view().shape());
  require_channels(s, {{"mean", &mean.view()}, {"inverse deviation", &inverse_deviation.view()}});
  double* sums = moments_of(moments, s.channels);
  std::fill_n(sums, moments.count(), 0.0);
  sums[0] = static_cast<double>(s.batch * s.positions);
  F32Operands f32("batch norm");
  const float *x = f32.read(input), *dy = f32.read(output_gradient);
  const float *m = f32.exactly(mean), *r = f32.exactly(inverse_deviation);
  for_each_plane(s, [&](int64_t c, int64_t at) {
    const auto [sum, products] = gradient_sums(dy + at, x + at, m[c], s.positions);
    sums[1 + c] += sum;
    sums[1 + s.channels + c] += products * static_cast<double>(r[c]);
  });
}

void CpuLayerKernels::batch_norm_backward_input(const ConstTensorView& input,
                                                const ConstTensorView& mean,
                                                const ConstTensorView& inverse_deviation,
                                                const ConstTensorView& weight,
                                                const ConstTensorView& output_gradient,
                                                const ConstTensorView& moments,
                                                const TensorView& input_gradient) {
  const auto s = channels_shape("batch norm", input.view().shape());
  require_shape("batch norm", "gradient of the output", output_gradient.view(),
                input.view().shape());
  require_shape("batch norm", "gradient of the input", input_gradient, input.view().shape());
  require_channels(s, {{"mean", &mean.view()},
                       {"inverse deviation", &inverse_deviation.view()},
                       {"weight", &weight.view()}});
  const bool is_training = moments.view().count() > 0;
  const double* sums = is_training ? moments_of(moments.view(), s.channels) : nullptr;
  if (s.batch * s.positions == 0) return;
  F32Operands f32("batch norm");
  const float *x = f32.read(input), *dy = f32.read(output_gradient), *w = f32.read(weight);
  const float *m = f32.exactly(mean), *r = f32.exactly(inverse_deviation);
  float* dx = f32.write(input_gradient);
  for_each_plane(s, [&](int64_t c, int64_t at) {
    float base = 0, slope = 0;
    if (is_training) {
      base = static_cast<float>(sums[1 + c] / sums[0]);
      slope = static_cast<float>(sums[1 + s.channels + c] / sums[0] * double{r[c]});
    }
    plane_gradient(dy + at, x + at, w[c] * r[c], base, m[c], slope, dx + at, s.positions);
  });
  f32.finish();
}

void CpuLayerKernels::batch_norm_backward_weights(const ConstTensorView& moments,
                                                  const TensorView& weight_gradient,
                                                  const TensorView& bias_gradient) {
  const ChannelsShape s{0, weight_gradient.count(), 0};
  require_channels(s, {{"gradient of the bias", &bias_gradient}});
  const double* sums = moments_of(moments.view(), s.channels);
  F32Operands f32("batch norm");
  float *dw = f32.exactly(weight_gradient), *db = f32.exactly(bias_gradient);
  for (int64_t c = 0; c < s.channels; ++c) {
    db[c] += static_cast<float>(sums[1 + c]);
    dw[c] += static_cast<float>(sums[1 + s.channels + c]);
  }
}

void CpuLayerKernels::layer_norm_forward(double epsilon, const ConstTensorView& input,
                                         const ConstTensorView& weight, const ConstTensorView& bias,
                                         const TensorView& output, const TensorView& statistics) {
  const auto [rows, features] = rows_shape(input.view().shape(), statistics);
  require_shape("layer norm", "output", output, input.view().shape());
  require_shape("layer norm", "weight", weight.view(), Shape{features});
  require_shape("layer norm", "bias", bias.view(), Shape{features});
  F32Operands f32("layer norm");
  const float *x = f32.read(input), *w = f32.read(weight), *b = f32.read(bias);
  float *y = f32.write(output), *kept = f32.exactly(statistics);
  const auto count = static_cast<double>(features);
  for (int64_t n = 0; n < rows; ++n, x += features, y += features) {
    const double average = sum_and_squares(x, features).first / count;
    const double squares = centered_squares(x, average, features);
    const auto mean = static_cast<float>(average);
    const auto inverse = static_cast<float>(1 / std::sqrt(squares / count + epsilon));
    kept[2 * n] = mean;
    kept[2 * n + 1] = inverse;
    scale_row(x, mean, inverse, w, b, y, features);
  }
  f32.finish();
}

void CpuLayerKernels::layer_norm_backward_input(const ConstTensorView& input,
                                                const ConstTensorView& statistics,
                                                const ConstTensorView& weight,
                                                const ConstTensorView& output_gradient,
                                                const TensorView& input_gradient) {
  const auto [rows, features] = rows_shape(input.view().shape(), statistics.view());
  require_shape("layer norm", "gradient of the output", output_gradient.view(),
                input.view().shape());
  require_shape("layer norm", "gradient of the input", input_gradient, input.view().shape());
  require_shape("layer norm", "weight", weight.view(), Shape{features});
  F32Operands f32("layer norm");
  const float *x = f32.read(input), *dy = f32.read(output_gradient), *w = f32.read(weight);
  const float* kept = f32.exactly(statistics);
  float* dx = f32.write(input_gradient);
  const auto count = static_cast<double>(features);
  for (int64_t n = 0; n < rows; ++n, x += features, dy += features, dx += features) {
    const float mean = kept[2 * n], inverse = kept[2 * n + 1];
    const auto [sum, products] = weighted_gradient_sums(dy, w, x, mean, features);
    const auto base = static_cast<float>(sum / count);
    const auto slope = static_cast<float>(products / count * double{inverse} * double{inverse});
    row_gradient(dy, w, x, inverse, base, mean, slope, dx, features);
  }
  f32.finish();
}

void CpuLayerKernels::layer_norm_backward_weights(const ConstTensorView& input,
                                                  const ConstTensorView& statistics,
                                                  const ConstTensorView& output_gradient,
                                                  const TensorView& weight_gradient,
                                                  const TensorView& bias_gradient) {
  const auto [rows, features] = rows_shape(input.view().shape(), statistics.view());
  require_shape("layer norm", "gradient of the output", output_gradient.view(),
                input.view().shape());
  require_shape("layer norm", "gradient of the weight", weight_gradient, Shape{features});
  require_shape("layer norm", "gradient of the bias", bias_gradient, Shape{features});
  F32Operands f32("layer norm");
  const float *x = f32.read(input), *dy = f32.read(output_gradient);
  const float* kept = f32.exactly(statistics);
  float *dw = f32.exactly(weight_gradient), *db = f32.exactly(bias_gradient);
  std::vector<double> weights(static_cast<size_t>(features)), biases(weights.size());
  for (int64_t n = 0; n < rows; ++n, x += features, dy += features) {
    add_row_gradients(dy, x, kept[2 * n], kept[2 * n + 1], weights.data(), biases.data(), features);
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    dw[i] += static_cast<float>(weights[i]);
    db[i] += static_cast<float>(biases[i]);
  }
}

}  // namespace tutti
