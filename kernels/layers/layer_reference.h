#pragma once

#include <cstdint>

#include "tutti/kernels/layers/layer_shapes.h"

namespace tutti {

/// The plain loops that define LayerKernels, accumulated in f64 and rounded once. Gradients must
/// not be null here.

void linear_forward_reference(const LinearShape& shape, const float* input, const float* weight,
                              const float* bias, float* output);
void linear_backward_reference(const LinearShape& shape, const float* input, const float* weight,
                               const float* output_gradient, float* input_gradient,
                               float* weight_gradient, float* bias_gradient);

void conv2d_forward_reference(const Conv2dShape& shape, const float* input, const float* weight,
                              const float* bias, float* output);
void conv2d_backward_reference(const Conv2dShape& shape, const float* input, const float* weight,
                               const float* output_gradient, float* input_gradient,
                               float* weight_gradient, float* bias_gradient);

/// Where a window holds its maximum twice, the first in row order gets the gradient.
void pool2d_forward_reference(const Pool2dShape& shape, const float* input, float* output);
void pool2d_backward_reference(const Pool2dShape& shape, const float* input,
                               const float* output_gradient, float* input_gradient);

void activation_forward_reference(Activation activation, int64_t count, const float* input,
                                  float* output);
void activation_backward_reference(Activation activation, int64_t count, const float* output,
                                   const float* output_gradient, float* input_gradient);

double softmax_cross_entropy_forward_reference(int64_t batch, int64_t classes, const float* logits,
                                               const int64_t* labels, float* log_probabilities);
void softmax_cross_entropy_backward_reference(int64_t batch, int64_t classes,
                                              const float* log_probabilities, const int64_t* labels,
                                              float* logit_gradient);

}  // namespace tutti
