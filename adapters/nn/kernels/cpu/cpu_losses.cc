// Losses of CpuLayerKernels.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tutti/adapters/nn/kernels/cpu/cpu_layer_kernels.h"
#include "tutti/adapters/nn/kernels/cpu/f32_operands.h"
#include "tutti/adapters/nn/kernels/cpu/row_loops.h"
#include "tutti/base/error.h"

namespace tutti {
namespace {

struct Classes {
  int64_t batch = 0;
  int64_t classes = 0;
  const int64_t* labels = nullptr;
};

Classes check_labels(const char* loss, const ConstTensorView& rows, const ConstTensorView& labels) {
  const auto& shape = rows.view().shape();
  const auto& all = labels.view();
  if (shape.rank() != 2 || shape[1] < 1 || all.dtype() != DataType::i64 ||
      all.shape() != Shape{shape[0]})
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("{} got logits {} and labels {}{}; expected "
                    "[batch, classes] and i64[batch]",
                    loss, shape.to_string(), to_string(all.dtype()), all.shape().to_string()));
  const auto* first = all.as<int64_t>();
  for (int64_t n = 0; n < shape[0]; ++n)
    if (first[n] < 0 || first[n] >= shape[1])
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("label {} of the batch is {}; expected 0 to {}", n, first[n], shape[1] - 1));
  return {shape[0], shape[1], first};
}

// Returns how many elements each row of the squared error has.
int64_t row_elements(const ConstTensorView& input, const ConstTensorView& target) {
  const auto& shape = input.view().shape();
  require_shape("squared error", "target", target.view(), shape);
  if (shape.rank() < 1 || shape.row_count() < 1)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("squared error cannot take {}; expected [batch, ...] with at least one "
                            "element a row",
                            shape.to_string()));
  return shape.row_count();
}

void log_softmax(const float* x, float* y, int64_t count) {
  const float most = largest(x, count);
  const double sum = sum_of_exponentials(x, most, count);
  subtract(x, static_cast<float>(static_cast<double>(most) + std::log(sum)), y, count);
}

}  // namespace

void CpuLayerKernels::softmax_cross_entropy_forward(const ConstTensorView& logits,
                                                    const ConstTensorView& labels,
                                                    const TensorView& log_probabilities,
                                                    const TensorView& losses) {
  const auto [batch, classes, label] = check_labels("softmax cross-entropy", logits, labels);
  require_shape("softmax cross-entropy", "result", log_probabilities, logits.view().shape());
  require_shape("softmax cross-entropy", "loss", losses, Shape{batch});
  if (batch == 0) return;
  F32Operands f32("softmax cross-entropy");
  const float* x = f32.read(logits);
  float *result = f32.exactly(log_probabilities), *loss = f32.exactly(losses);
  for (int64_t n = 0; n < batch; ++n, x += classes, result += classes) {
    log_softmax(x, result, classes);
    loss[n] = -result[label[n]];
  }
}

void CpuLayerKernels::softmax_cross_entropy_backward(const ConstTensorView& log_probabilities,
                                                     const ConstTensorView& labels, float scale,
                                                     const TensorView& logit_gradient) {
  const auto [batch, classes, label] =
      check_labels("softmax cross-entropy", log_probabilities, labels);
  require_shape("softmax cross-entropy", "gradient of the logits", logit_gradient,
                log_probabilities.view().shape());
  if (batch == 0) return;
  F32Operands f32("softmax cross-entropy");
  const float* logs = f32.exactly(log_probabilities);
  float* gradient = f32.write(logit_gradient);
  // The gradient is the softmax, minus one at the label, times `scale`.
  for (int64_t n = 0; n < batch; ++n, logs += classes, gradient += classes) {
    scaled_exponentials(logs, scale, gradient, classes);
    gradient[label[n]] -= scale;
  }
  f32.finish();
}

void CpuLayerKernels::negative_log_likelihood_forward(const ConstTensorView& input,
                                                      const ConstTensorView& labels,
                                                      const TensorView& losses) {
  const auto [batch, classes, label] = check_labels("negative log likelihood", input, labels);
  require_shape("negative log likelihood", "loss", losses, Shape{batch});
  F32Operands f32("negative log likelihood");
  const float* x = f32.read(input);
  float* loss = f32.exactly(losses);
  for (int64_t n = 0; n < batch; ++n) loss[n] = -x[n * classes + label[n]];
}

void CpuLayerKernels::negative_log_likelihood_backward(const ConstTensorView& labels, float scale,
                                                       const TensorView& input_gradient) {
  const auto [batch, classes, label] =
      check_labels("negative log likelihood", input_gradient, labels);
  F32Operands f32("negative log likelihood");
  float* dx = f32.write(input_gradient);
  std::fill_n(dx, input_gradient.count(), 0.0f);
  for (int64_t n = 0; n < batch; ++n) dx[n * classes + label[n]] = -scale;
  f32.finish();
}

void CpuLayerKernels::squared_error_forward(const ConstTensorView& input,
                                            const ConstTensorView& target,
                                            const TensorView& losses) {
  const int64_t elements = row_elements(input, target), batch = input.view().shape()[0];
  require_shape("squared error", "loss", losses, Shape{batch});
  F32Operands f32("squared error");
  const float *x = f32.read(input), *wanted = f32.read(target);
  float* loss = f32.exactly(losses);
  for (int64_t n = 0; n < batch; ++n, x += elements, wanted += elements) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < elements; ++i) {
      const double difference = static_cast<double>(x[i] - wanted[i]);
      sum += difference * difference;
    }
    loss[n] = static_cast<float>(sum / static_cast<double>(elements));
  }
}

void CpuLayerKernels::squared_error_backward(const ConstTensorView& input,
                                             const ConstTensorView& target, float scale,
                                             const TensorView& input_gradient) {
  const int64_t elements = row_elements(input, target);
  require_shape("squared error", "gradient of the input", input_gradient, input.view().shape());
  F32Operands f32("squared error");
  const float *x = f32.read(input), *wanted = f32.read(target);
  float* dx = f32.write(input_gradient);
  const float factor = 2 * scale / static_cast<float>(elements);
  for (int64_t i = 0; i < input_gradient.count(); ++i) dx[i] = factor * (x[i] - wanted[i]);
  f32.finish();
}

}  // namespace tutti
