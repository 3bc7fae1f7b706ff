#pragma once

#include <cstdint>

#include "tutti/kernels/layers/layer_kernels.h"
#include "tutti/tensor/tensor.h"

namespace tutti::nn {

/// Softmax cross-entropy of logits f32[batch, classes] against labels i64[batch], averaged over the
/// batch. Throws Error(invalid_argument) for other shapes or a label that is no class.
class CrossEntropy {
 public:
  CrossEntropy(Tensor logits, Tensor labels);
  double value() const { return value_; }
  /// Of the logits.
  Tensor gradient(LayerKernels& kernels) const;

 private:
  Tensor labels_;
  Tensor log_probabilities_;
  double value_ = 0;
};

/// How many rows of `logits` have their largest value at the label.
int64_t count_correct(const Tensor& logits, const Tensor& labels);

}  // namespace tutti::nn
