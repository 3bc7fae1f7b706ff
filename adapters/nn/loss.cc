#include "tutti/adapters/nn/loss.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/base/error.h"

namespace tutti::nn {

CrossEntropy::CrossEntropy(Tensor logits, Tensor labels) : labels_(std::move(labels)) {
  const auto& shape = logits.shape();
  if (logits.dtype() != DataType::f32 || shape.rank() != 2 || labels_.dtype() != DataType::i64 ||
      labels_.shape() != Shape{shape[0]})
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("cross entropy got logits {}{} and labels {}{}, want f32[batch,classes] "
                    "and i64[batch]",
                    to_string(logits.dtype()), shape.to_string(), to_string(labels_.dtype()),
                    labels_.shape().to_string()));
  for (const int64_t label : labels_.span<int64_t>())
    if (label < 0 || label >= shape[1])
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("label {} is no class of {}", label, shape[1]));
  log_probabilities_ = Tensor(shape, DataType::f32);
  // The primitive is made once per thread and kept; a loss is made anew for each batch.
  static thread_local LayerKernels kernels;
  value_ =
      kernels.softmax_cross_entropy_forward(shape[0], shape[1], logits.as<float>(),
                                            labels_.as<int64_t>(), log_probabilities_.as<float>());
}

Tensor CrossEntropy::gradient(LayerKernels& kernels) const {
  const auto& shape = log_probabilities_.shape();
  Tensor gradient(shape, DataType::f32);
  kernels.softmax_cross_entropy_backward(shape[0], shape[1], log_probabilities_.as<float>(),
                                         labels_.as<int64_t>(), gradient.as<float>());
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
