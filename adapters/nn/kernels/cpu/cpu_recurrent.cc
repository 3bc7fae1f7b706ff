// Recurrent layers and row products of CpuLayerKernels. A recurrent layer runs step by step, with
// oneDNN's products for the hidden values.

#include <cmath>

#include "tutti/adapters/nn/kernels/cpu/cpu_layer_kernels.h"
#include "tutti/adapters/nn/kernels/cpu/f32_operands.h"
#include "tutti/adapters/nn/kernels/cpu/primitive_cache.h"

namespace tutti {
namespace {

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

// Computes one element of a step and returns its hidden value. `in` and `hidden` are the
// contributions of the inputs and of the hidden values to the element's gates. `kept` receives the
// values that backward needs. In all three arrays the element's values are `width` apart. `before`
// is the cell (lstm) or the hidden value (gru) before the step.
float lstm_element(const float* in, const float* hidden, int64_t width, float before, float* kept) {
  const float input = sigmoid(in[0] + hidden[0]), forget = sigmoid(in[width] + hidden[width]),
              candidate = std::tanh(in[2 * width] + hidden[2 * width]),
              output = sigmoid(in[3 * width] + hidden[3 * width]);
  const float cell = forget * before + input * candidate;
  kept[0] = input;
  kept[width] = forget;
  kept[2 * width] = candidate;
  kept[3 * width] = output;
  kept[4 * width] = cell;
  return output * std::tanh(cell);
}

float gru_element(const float* in, const float* hidden, int64_t width, float before, float* kept) {
  const float reset = sigmoid(in[0] + hidden[0]), update = sigmoid(in[width] + hidden[width]);
  const float candidate = std::tanh(in[2 * width] + reset * hidden[2 * width]);
  kept[0] = reset;
  kept[width] = update;
  kept[2 * width] = candidate;
  kept[3 * width] = hidden[2 * width];
  return (1 - update) * candidate + update * before;
}

// Computes the gradients of an element's gates from `dy`, the gradient of its hidden value.
// `carried` is the gradient of the cell, which is passed on to the previous step. Returns the part
// of dy that reaches the previous hidden value directly, which for lstm is 0.
float lstm_slopes(const float* kept, int64_t width, float before, float dy, float& carried,
                  float* in, float* hidden) {
  const float input = kept[0], forget = kept[width], candidate = kept[2 * width],
              output = kept[3 * width], squashed = std::tanh(kept[4 * width]);
  const float cell = carried + dy * output * (1 - squashed * squashed);
  in[0] = hidden[0] = cell * candidate * input * (1 - input);
  in[width] = hidden[width] = cell * before * forget * (1 - forget);
  in[2 * width] = hidden[2 * width] = cell * input * (1 - candidate * candidate);
  in[3 * width] = hidden[3 * width] = dy * squashed * output * (1 - output);
  carried = cell * forget;
  return 0;
}

float gru_slopes(const float* kept, int64_t width, float before, float dy, float* in,
                 float* hidden) {
  const float reset = kept[0], update = kept[width], candidate = kept[2 * width];
  const float slope = dy * (1 - update) * (1 - candidate * candidate);
  in[0] = hidden[0] = slope * kept[3 * width] * reset * (1 - reset);
  in[width] = hidden[width] = dy * (before - candidate) * update * (1 - update);
  in[2 * width] = slope;
  hidden[2 * width] = slope * reset;
  return dy * update;
}

}  // namespace

void CpuLayerKernels::recurrent_forward(Recurrence recurrence, const ConstTensorView& gates,
                                        const ConstTensorView& weight, const ConstTensorView& bias,
                                        const TensorView& output, const TensorView& kept) {
  const auto s = recurrent_shape(recurrence, gates.view().shape());
  const int64_t all = s.gates * s.width, stride = s.kept * s.width;
  require_shape("recurrent layer", "weight", weight.view(), Shape{all, s.width});
  require_shape("recurrent layer", "bias", bias.view(), Shape{all});
  require_shape("recurrent layer", "output", output, Shape{s.batch, s.length, s.width});
  require_shape("recurrent layer", "kept values", kept, Shape{s.batch, s.length, stride});
  if (s.batch == 0) return;
  F32Operands f32("recurrent layer");
  const float *in = f32.read(gates), *w = f32.read(weight), *b = f32.read(bias);
  float *y = f32.write(output), *k = f32.exactly(kept);
  float* hidden = scratch(s.batch * all, 0);
  for (int64_t t = 0; t < s.length; ++t) {
    for (int64_t n = 0; n < s.batch; ++n) std::copy_n(b, all, hidden + n * all);
    if (t > 0)
      cache_->multiply('N', 'T', s.batch, all, s.width, 1, y + (t - 1) * s.width,
                       s.length * s.width, w, s.width, 1, hidden, all);
    for (int64_t n = 0; n < s.batch; ++n) {
      const int64_t row = n * s.length + t;
      for (int64_t i = 0; i < s.width; ++i) {
        float* value = k + row * stride + i;
        const float start = t == 0                           ? 0
                            : recurrence == Recurrence::lstm ? *(value - stride + 4 * s.width)
                                                             : y[(row - 1) * s.width + i];
        y[row * s.width + i] =
            recurrence == Recurrence::lstm
                ? lstm_element(in + row * all + i, hidden + n * all + i, s.width, start, value)
                : gru_element(in + row * all + i, hidden + n * all + i, s.width, start, value);
      }
    }
  }
  f32.finish();
}

void CpuLayerKernels::recurrent_backward(Recurrence recurrence, const ConstTensorView& weight,
                                         const ConstTensorView& output, const ConstTensorView& kept,
                                         const ConstTensorView& output_gradient,
                                         const TensorView& gates_gradient,
                                         const TensorView& hidden_gradient) {
  const auto s = recurrent_shape(recurrence, gates_gradient.shape());
  const int64_t all = s.gates * s.width, stride = s.kept * s.width;
  const Shape outputs{s.batch, s.length, s.width};
  require_shape("recurrent layer", "weight", weight.view(), Shape{all, s.width});
  require_shape("recurrent layer", "output", output.view(), outputs);
  require_shape("recurrent layer", "kept values", kept.view(), Shape{s.batch, s.length, stride});
  require_shape("recurrent layer", "gradient of the output", output_gradient.view(), outputs);
  require_shape("recurrent layer", "gradient of the hidden gates", hidden_gradient,
                gates_gradient.shape());
  if (s.batch == 0) return;
  F32Operands f32("recurrent layer");
  const float *w = f32.read(weight), *y = f32.read(output), *dy = f32.read(output_gradient);
  const float* k = f32.exactly(kept);
  float *in = f32.write(gates_gradient), *hidden = f32.write(hidden_gradient);
  // The gradients of the hidden values (`later`) and of the cells (`cells`) that come from the
  // following step.
  float* later = scratch(2 * s.batch * s.width, 0);
  float* cells = later + s.batch * s.width;
  std::fill_n(later, 2 * s.batch * s.width, 0.0f);
  for (int64_t t = s.length - 1; t >= 0; --t) {
    for (int64_t n = 0; n < s.batch; ++n) {
      const int64_t row = n * s.length + t;
      for (int64_t i = 0; i < s.width; ++i) {
        float& behind = later[n * s.width + i];
        const float gradient = dy[row * s.width + i] + behind;
        const float* value = k + row * stride + i;
        const int64_t at = row * all + i;
        if (recurrence == Recurrence::lstm)
          behind = lstm_slopes(value, s.width, t > 0 ? *(value - stride + 4 * s.width) : 0,
                               gradient, cells[n * s.width + i], in + at, hidden + at);
        else
          behind = gru_slopes(value, s.width, t > 0 ? y[(row - 1) * s.width + i] : 0, gradient,
                              in + at, hidden + at);
      }
    }
    cache_->multiply('N', 'N', s.batch, s.width, all, 1, hidden + t * all, s.length * all, w,
                     s.width, 1, later, s.width);
  }
  f32.finish();
}

void CpuLayerKernels::row_products_forward(const ConstTensorView& a, const ConstTensorView& b,
                                           const TensorView& output) {
  const auto& shape = a.view().shape();
  require_shape("row products", "second factor", b.view(), shape);
  require_shape("row products", "output", output, Shape{shape.rank() > 0 ? shape[0] : 0, 1});
  F32Operands f32("row products");
  const float *x = f32.read(a), *y = f32.read(b);
  float* product = f32.write(output);
  const int64_t features = shape.row_count();
  for (int64_t n = 0; n < output.count(); ++n, x += features, y += features) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < features; ++i) sum += static_cast<double>(x[i] * y[i]);
    product[n] = static_cast<float>(sum);
  }
  f32.finish();
}

void CpuLayerKernels::row_products_backward(const ConstTensorView& b,
                                            const ConstTensorView& output_gradient,
                                            const TensorView& a_gradient) {
  const auto& shape = a_gradient.shape();
  require_shape("row products", "other factor", b.view(), shape);
  require_shape("row products", "gradient of the output", output_gradient.view(),
                Shape{shape.rank() > 0 ? shape[0] : 0, 1});
  F32Operands f32("row products");
  const float *y = f32.read(b), *dy = f32.read(output_gradient);
  float* dx = f32.write(a_gradient);
  const int64_t features = shape.row_count();
  for (int64_t i = 0; i < a_gradient.count(); ++i) dx[i] = dy[i / features] * y[i];
  f32.finish();
}

}  // namespace tutti
