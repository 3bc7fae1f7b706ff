#include "tutti/adapters/nn/layers/loss.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "tutti/adapters/nn/kernels/layer_kernels.h"
#include "tutti/base/error.h"
#include "tutti/kernels/convert.h"
#include "tutti/tensor/tensor.h"

namespace tutti::nn {

namespace {

// Returns the kernels that compute losses on the tensor's device. Each thread keeps its own,
// because a new loss is made for each batch and making the kernels' primitives takes time.
LayerKernels& loss_kernels(const Tensor& tensor) {
  static thread_local std::map<std::pair<DeviceKind, int>, std::unique_ptr<LayerKernels>> all;
  const auto device = tensor.device();
  auto& kernels = all[{device.kind, device.index}];
  if (kernels == nullptr) kernels = make_layer_kernels(device);
  return *kernels;
}

// The labels on the logits' device, and memory for the loss of each label.
struct Sided {
  LayerKernels& kernels;
  Tensor labels, losses;
  Sided(const Tensor& logits, const Tensor& host_labels)
      : kernels(loss_kernels(logits)),
        labels(kernels.upload(host_labels.reshaped({host_labels.count()}), logits.view().stream())),
        losses(kernels.make_tensor(labels.shape(), DataType::f32, logits.view().stream())) {}
};

// Returns [batch, ..., classes] as [samples, classes].
Tensor as_rows(const Tensor& logits) {
  const auto& shape = logits.shape();
  const int64_t classes = shape[shape.rank() - 1];
  return logits.reshaped({classes == 0 ? 0 : logits.count() / classes, classes});
}

void require_on_host(const char* caller, const Tensor& labels) {
  if (labels.device().kind == DeviceKind::cpu) return;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("{} got labels on {}, expected them in host memory, where they are checked",
                  caller, to_string(labels.device())));
}

void check(const char* loss, const Tensor& logits, const Tensor& labels) {
  const auto& shape = logits.shape();
  const auto dtype = logits.dtype();
  const bool is_known = dtype == DataType::f32 || dtype == DataType::bf16 || dtype == DataType::f16;
  if (!is_known || shape.rank() < 2 || labels.dtype() != DataType::i64 ||
      labels.shape() != Shape(shape.extents().first(shape.extents().size() - 1)))
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format(
            "{} got logits {}{} and labels {}{}, expected f32[batch,classes] and i64[batch]", loss,
            to_string(dtype), shape.to_string(), to_string(labels.dtype()),
            labels.shape().to_string()));
  require_on_host(loss, labels);
  const int64_t classes = shape[shape.rank() - 1];
  for (const int64_t label : labels.span<int64_t>())
    if (label < 0 || label >= classes)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("label {} is not a class of {}", label, classes));
}

}  // namespace

void Loss::set_losses(const Tensor& losses) {
  losses_ = losses;
  count_ = losses.count();
}

double Loss::sum() const {
  if (!losses_) return sum_;
  const auto host = on_host(losses_);
  for (const float loss : host.span<float>()) sum_ += static_cast<double>(loss);
  losses_ = {};
  return sum_;
}

CrossEntropy::CrossEntropy(const Tensor& logits, const Tensor& labels)
    : shape_(logits.shape()), dtype_(logits.dtype()) {
  check("cross entropy", logits, labels);
  const auto rows = as_rows(logits);
  const Sided sided(rows, labels);
  labels_ = sided.labels;
  log_probabilities_ = sided.kernels.make_tensor(rows.shape(), DataType::f32, rows.view().stream());
  sided.kernels.softmax_cross_entropy_forward(rows, labels_, log_probabilities_, sided.losses);
  set_losses(sided.losses);
}

Tensor CrossEntropy::gradient(LayerKernels& kernels, double divisor) const {
  const Tensor gradient =
      kernels.make_tensor(log_probabilities_.shape(), dtype_, log_probabilities_.view().stream());
  kernels.softmax_cross_entropy_backward(log_probabilities_, labels_,
                                         static_cast<float>(1 / divisor), gradient);
  return gradient.reshaped(shape_);
}

NegativeLogLikelihood::NegativeLogLikelihood(const Tensor& log_probabilities, const Tensor& labels)
    : log_probabilities_(log_probabilities) {
  check("negative log likelihood", log_probabilities, labels);
  const Sided sided(log_probabilities, labels);
  labels_ = sided.labels;
  sided.kernels.negative_log_likelihood_forward(as_rows(log_probabilities), labels_, sided.losses);
  set_losses(sided.losses);
}

Tensor NegativeLogLikelihood::gradient(LayerKernels& kernels, double divisor) const {
  const Tensor gradient =
      kernels.make_tensor(as_rows(log_probabilities_).shape(), log_probabilities_.dtype(),
                          log_probabilities_.view().stream());
  kernels.negative_log_likelihood_backward(labels_, static_cast<float>(1 / divisor), gradient);
  return gradient.reshaped(log_probabilities_.shape());
}

MeanSquaredError::MeanSquaredError(const Tensor& output, const Tensor& target)
    : output_(output), target_(target) {
  auto& kernels = loss_kernels(output);
  const auto stream = output.view().stream();
  if (target.device() != output.device()) target_ = kernels.upload(target, stream);
  const Tensor losses = kernels.make_tensor(
      Shape{output.shape().rank() > 0 ? output.shape()[0] : 0}, DataType::f32, stream);
  kernels.squared_error_forward(output_, target_, losses);
  set_losses(losses);
}

Tensor MeanSquaredError::gradient(LayerKernels& kernels, double divisor) const {
  Tensor gradient = kernels.make_tensor(output_.shape(), output_.dtype(), output_.view().stream());
  kernels.squared_error_backward(output_, target_, static_cast<float>(1 / divisor), gradient);
  return gradient;
}

int64_t count_correct(const Tensor& logits, const Tensor& labels) {
  require_on_host("count_correct", labels);
  auto host = on_host(logits);
  if (host.dtype() != DataType::f32) {
    const Tensor narrow = host;
    host = Tensor(narrow.shape(), DataType::f32);
    cast(narrow.dtype(), narrow.data(), DataType::f32, host.data(), host.count());
  }
  const int64_t classes = logits.shape()[1];
  int64_t correct = 0;
  for (int64_t row = 0; row < labels.count(); ++row) {
    const float* first = host.as<float>() + row * classes;
    correct += std::max_element(first, first + classes) - first == labels.as<int64_t>()[row];
  }
  return correct;
}

}  // namespace tutti::nn
