#pragma once

#include <cstdint>

#include "tutti/tensor/tensor.h"

namespace tutti {
class LayerKernels;  // kernels/layers/layer_kernels.h
}

namespace tutti::nn {

/// What a model is trained to make small: a sum over the samples of a batch, so that the batches of
/// several ranks, whatever their sizes, add up to the joined one. Only who knows the number of all
/// samples divides.
class Loss {
 public:
  virtual ~Loss() = default;
  /// Over the samples of this batch. Of a batch on a device it waits, once, until it is known.
  double sum() const;
  int64_t count() const { return count_; }  // of the samples
  double value() const {                    // their mean; 0 of an empty batch
    return count_ == 0 ? 0 : sum() / static_cast<double>(count_);
  }
  /// Of sum() / divisor by what the model put out, in its type.
  virtual Tensor gradient(LayerKernels& kernels, double divisor) const = 0;
  /// Of value().
  Tensor gradient(LayerKernels& kernels) const {
    return gradient(kernels, count_ == 0 ? 1 : static_cast<double>(count_));
  }

 protected:
  /// The losses of the samples, f32, whose sum is asked for later.
  void set_losses(const Tensor& losses);

 private:
  mutable Tensor losses_;  // none: they are added up
  mutable double sum_ = 0;
  int64_t count_ = 0;
};

/// Softmax cross-entropy of logits [batch, ..., classes] against labels i64[batch, ...]; each label
/// is a sample. Labels are the host's, wherever the logits are. Throws Error(invalid_argument) for
/// other shapes or a label that is no class.
class CrossEntropy final : public Loss {
 public:
  CrossEntropy(const Tensor& logits, const Tensor& labels);
  using Loss::gradient;
  Tensor gradient(LayerKernels& kernels, double divisor) const override;

 private:
  Shape shape_{0};
  DataType dtype_;
  Tensor labels_;
  Tensor log_probabilities_;
};

/// The same of log probabilities, as log_softmax() puts them out.
class NegativeLogLikelihood final : public Loss {
 public:
  NegativeLogLikelihood(const Tensor& log_probabilities, const Tensor& labels);
  using Loss::gradient;
  Tensor gradient(LayerKernels& kernels, double divisor) const override;

 private:
  Tensor log_probabilities_, labels_;
};

/// The mean over a sample's elements of (output - target)^2: [batch, ...] both, each row a sample.
class MeanSquaredError final : public Loss {
 public:
  MeanSquaredError(const Tensor& output, const Tensor& target);
  using Loss::gradient;
  Tensor gradient(LayerKernels& kernels, double divisor) const override;

 private:
  Tensor output_, target_;
};

/// How many rows of `logits` [batch, classes], wherever they are, have their largest value at the
/// label.
int64_t count_correct(const Tensor& logits, const Tensor& labels);

}  // namespace tutti::nn
