#pragma once

#include <cuda_runtime_api.h>

#include "tutti/kernels/cuda/layers/layer_tile.h"

namespace tutti::cuda {

/// Layers of layer_tile.h as kernels on the current device, in stream order, one launch each; all
/// pointers are memory that the device reaches.
cudaError_t launch_softmax(const LossRows& rows, int64_t batch, cudaStream_t stream);
cudaError_t launch_softmax_backward(const LossRows& rows, int64_t batch, float scale,
                                    float* logit_gradient, cudaStream_t stream);
cudaError_t launch_bias_relu(const BiasRelu& layer, const float* input, float* output,
                             cudaStream_t stream);
cudaError_t launch_relu_backward(int64_t count, const float* output, const float* output_gradient,
                                 float* input_gradient, cudaStream_t stream);
cudaError_t launch_bias_gradient(const BiasRelu& layer, const float* output_gradient,
                                 float* bias_gradient, cudaStream_t stream);
cudaError_t launch_max_pooling(const MaxPooling& layer, const float* input, float* output,
                               uint8_t* places, cudaStream_t stream);
cudaError_t launch_max_pooling_backward(const MaxPooling& layer, const float* output_gradient,
                                        const uint8_t* places, float* input_gradient,
                                        cudaStream_t stream);

/// As load_kernels() does.
cudaError_t load_layer_kernels();

}  // namespace tutti::cuda
