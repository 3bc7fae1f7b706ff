#pragma once

#include <cstdint>

#include "tutti/tensor/tensor.h"

namespace tutti {
class LayerKernels;  // adapters/nn/kernels/layer_kernels.h
}

namespace tutti::nn {

/// The value that training minimizes: a sum over the samples of a batch. Because it is a sum, the
/// batches of several ranks, whatever their sizes, add up to the joined batch. Only the caller that
/// knows the number of all samples divides by it.
class Loss {
 public:
  virtual ~Loss() = default;
  /// Returns the sum over the samples of this batch. If the batch is on a device, the first call
  /// waits for it.
  double sum() const;
  int64_t count() const { return count_; }  // number of samples
  double value() const {                    // mean over the samples; 0 for an empty batch
    return count_ == 0 ? 0 : sum() / static_cast<double>(count_);
  }
  /// Returns the gradient of sum() / divisor by the model's output, in the output's dtype.
  virtual Tensor gradient(LayerKernels& kernels, double divisor) const = 0;
  /// Returns the gradient of value().
  Tensor gradient(LayerKernels& kernels) const {
    return gradient(kernels, count_ == 0 ? 1 : static_cast<double>(count_));
  }

 protected:
  /// Sets the losses of the samples, f32. sum() adds them up when it is called.
  void set_losses(const Tensor& losses);

 private:
  mutable Tensor losses_;  // empty once they are added up
  mutable double sum_ = 0;
  int64_t count_ = 0;
};

/// Softmax cross-entropy of logits [batch, ..., classes] against labels i64[batch, ...]; each label
/// is a sample. Labels are in host memory, wherever the logits are. Throws Error(invalid_argument)
/// for other shapes, or for a label that is not a class.
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

/// Like CrossEntropy, for log probabilities, which log_softmax() returns.
class NegativeLogLikelihood final : public Loss {
 public:
  NegativeLogLikelihood(const Tensor& log_probabilities, const Tensor& labels);
  using Loss::gradient;
  Tensor gradient(LayerKernels& kernels, double divisor) const override;

 private:
  Tensor log_probabilities_, labels_;
};

/// The mean of (output - target)^2 over a sample's elements. Both tensors are [batch, ...], and
/// each row is a sample.
class MeanSquaredError final : public Loss {
 public:
  MeanSquaredError(const Tensor& output, const Tensor& target);
  using Loss::gradient;
  Tensor gradient(LayerKernels& kernels, double divisor) const override;

 private:
  Tensor output_, target_;
};

/// Returns how many rows of `logits` [batch, classes] have their largest value at the label. The
/// logits may be on any device.
int64_t count_correct(const Tensor& logits, const Tensor& labels);

}  // namespace tutti::nn
