#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "tutti/kernels/layers/layer_shapes.h"

namespace tutti {

class PrimitiveCache;

/// Layers, forward and backward, by oneDNN. A primitive is made at the first use of a shape and
/// kept for the life of the object. One thread at a time uses an object; each model has its own, so
/// that ranks may be threads of one process. The same shape, thread count and machine give the same
/// bits.
///
/// Backward functions overwrite what they write; a null gradient is not computed. Throws
/// Error(invalid_argument) for a shape without elements or with a window larger than the image, and
/// Error(internal) with oneDNN's own text if it refuses.
class LayerKernels {
 public:
  /// `threads`: how many threads one call uses.
  explicit LayerKernels(int threads = 1);
  ~LayerKernels();
  LayerKernels(const LayerKernels&) = delete;
  LayerKernels& operator=(const LayerKernels&) = delete;

  /// Drops the cached primitives, which are made for one number of threads.
  void set_threads(int threads);
  int threads() const;

  void linear_forward(const LinearShape& shape, const float* input, const float* weight,
                      const float* bias, float* output);
  void linear_backward(const LinearShape& shape, const float* input, const float* weight,
                       const float* output_gradient, float* input_gradient, float* weight_gradient,
                       float* bias_gradient);

  void conv2d_forward(const Conv2dShape& shape, const float* input, const float* weight,
                      const float* bias, float* output);
  void conv2d_backward(const Conv2dShape& shape, const float* input, const float* weight,
                       const float* output_gradient, float* input_gradient, float* weight_gradient,
                       float* bias_gradient);

  /// Max pooling remembers where each maximum stood: that many bytes from forward to backward.
  size_t pool2d_workspace_bytes(const Pool2dShape& shape);
  void pool2d_forward(const Pool2dShape& shape, const float* input, float* output,
                      std::byte* workspace);
  void pool2d_backward(const Pool2dShape& shape, const float* output_gradient,
                       const std::byte* workspace, float* input_gradient);

  void activation_forward(Activation activation, int64_t count, const float* input, float* output);
  /// Both derivatives follow from the output: relu's is 1 where it is above 0, tanh's is 1 - y^2.
  void activation_backward(Activation activation, int64_t count, const float* output,
                           const float* output_gradient, float* input_gradient);

  /// Writes log softmax of each row of `logits` [batch, classes] and returns the mean over the
  /// batch of -log_probabilities[label].
  double softmax_cross_entropy_forward(int64_t batch, int64_t classes, const float* logits,
                                       const int64_t* labels, float* log_probabilities);
  /// logit_gradient = (softmax - one_hot(label)) / batch
  void softmax_cross_entropy_backward(int64_t batch, int64_t classes,
                                      const float* log_probabilities, const int64_t* labels,
                                      float* logit_gradient);

 private:
  const std::unique_ptr<PrimitiveCache> cache_;
};

}  // namespace tutti
