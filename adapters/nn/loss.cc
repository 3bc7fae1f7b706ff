#include "tutti/adapters/nn/loss.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/base/error.h"

namespace tutti::nn {

namespace {

// The primitives are made once per thread and kept; a loss is made anew for each batch.
LayerKernels& loss_kernels() {
  static thread_local const auto kernels = make_layer_kernels();
  return *kernels;
}

// [batch, ..., classes] as [samples, classes].
Tensor as_rows(const Tensor& logits) {
  const auto& shape = logits.shape();
  const int64_t classes = shape[shape.rank() - 1];
  return logits.reshaped({classes == 0 ? 0 : logits.count() / classes, classes});
}

void check(const char* loss, const Tensor& logits, const Tensor& labels) {
  const auto& shape = logits.shape();
  const auto dtype = logits.dtype();
  const bool is_known = dtype == DataType::f32 || dtype == DataType::bf16 || dtype == DataType::f16;
  if (!is_known || shape.rank() < 2 || labels.dtype() != DataType::i64 ||
      labels.shape() != Shape(shape.extents().first(shape.extents().size() - 1)))
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("{} got logits {}{} and labels {}{}, want f32[batch,classes] and i64[batch]",
                    loss, to_string(dtype), shape.to_string(), to_string(labels.dtype()),
                    labels.shape().to_string()));
  const int64_t classes = shape[shape.rank() - 1];
  for (const int64_t label : labels.span<int64_t>())
    if (label < 0 || label >= classes)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("label {} is no class of {}", label, classes));
}

}  // namespace

void Loss::add_up(const Tensor& losses) {
  for (const float loss : losses.span<float>()) sum_ += static_cast<double>(loss);
  count_ += losses.count();
}

CrossEntropy::CrossEntropy(const Tensor& logits, const Tensor& labels)
    : shape_(logits.shape()), dtype_(logits.dtype()) {
  check("cross entropy", logits, labels);
  const auto rows = as_rows(logits);
  labels_ = labels.reshaped({labels.count()});
  log_probabilities_ = loss_kernels().make_tensor(rows.shape(), DataType::f32);
  const Tensor losses(labels_.shape(), DataType::f32);
  loss_kernels().softmax_cross_entropy_forward(rows, labels_, log_probabilities_, losses);
  add_up(losses);
}

Tensor CrossEntropy::gradient(LayerKernels& kernels, double divisor) const {
  const Tensor gradient = kernels.make_tensor(log_probabilities_.shape(), dtype_);
  kernels.softmax_cross_entropy_backward(log_probabilities_, labels_,
                                         static_cast<float>(1 / divisor), gradient);
  return gradient.reshaped(shape_);
}

NegativeLogLikelihood::NegativeLogLikelihood(const Tensor& log_probabilities, const Tensor& labels)
    : log_probabilities_(log_probabilities), labels_(labels.reshaped({labels.count()})) {
  check("negative log likelihood", log_probabilities, labels);
  const Tensor losses(labels_.shape(), DataType::f32);
  loss_kernels().negative_log_likelihood_forward(as_rows(log_probabilities), labels_, losses);
  add_up(losses);
}

Tensor NegativeLogLikelihood::gradient(LayerKernels& kernels, double divisor) const {
  const Tensor gradient =
      kernels.make_tensor(as_rows(log_probabilities_).shape(), log_probabilities_.dtype());
  kernels.negative_log_likelihood_backward(labels_, static_cast<float>(1 / divisor), gradient);
  return gradient.reshaped(log_probabilities_.shape());
}

MeanSquaredError::MeanSquaredError(const Tensor& output, const Tensor& target)
    : output_(output), target_(target) {
  const Tensor losses(Shape{output.shape().rank() > 0 ? output.shape()[0] : 0}, DataType::f32);
  loss_kernels().squared_error_forward(output, target, losses);
  add_up(losses);
}

Tensor MeanSquaredError::gradient(LayerKernels& kernels, double divisor) const {
  Tensor gradient = kernels.make_tensor(output_.shape(), output_.dtype());
  kernels.squared_error_backward(output_, target_, static_cast<float>(1 / divisor), gradient);
  return gradient;
}

int64_t count_correct(const Tensor& logits, const Tensor& labels) {
  const int64_t classes = logits.shape()[1];
  int64_t correct = 0;
  for (int64_t row = 0; row < labels.count(); ++row) {
    const float* first = logits.as<float>() + row * classes;
    correct += std::max_element(first, first + classes) - first == labels.as<int64_t>()[row];
  }
  return correct;
}

}  // namespace tutti::nn
