#include "tutti/kernels/cuda/layers/layers.h"

namespace tutti::cuda {

namespace {

unsigned blocks_of(int64_t elements) {
  return static_cast<unsigned>((elements + kLayerElements - 1) / kLayerElements);
}

__device__ int64_t block() { return static_cast<int64_t>(blockIdx.x); }
__device__ int thread() { return static_cast<int>(threadIdx.x); }

__global__ void __launch_bounds__(kThreads) softmax_kernel(LossRows rows) {
  __shared__ float largest[kThreads];
  __shared__ double sums[kThreads];
  for (int phase = 0; phase < kSoftmaxPhases; ++phase) {
    softmax_tile(rows, block(), thread(), phase, largest, sums);
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kThreads)
    softmax_backward_kernel(LossRows rows, float scale, float* logit_gradient) {
  softmax_backward_tile(rows, scale, logit_gradient, block(), thread(), kThreads);
}

__global__ void __launch_bounds__(kThreads)
    bias_relu_kernel(BiasRelu layer, const float* input, float* output) {
  bias_relu_tile(layer, input, output, block(), thread(), kThreads);
}

__global__ void __launch_bounds__(kThreads)
    relu_backward_kernel(int64_t count, const float* output, const float* output_gradient,
                         float* input_gradient) {
  relu_backward_tile(count, output, output_gradient, input_gradient, block(), thread(), kThreads);
}

__global__ void __launch_bounds__(kThreads)
    bias_gradient_kernel(BiasRelu layer, const float* output_gradient, float* bias_gradient) {
  __shared__ double sums[kThreads];
  for (int phase = 0; phase < kBiasPhases; ++phase) {
    bias_gradient_tile(layer, output_gradient, bias_gradient, block(), thread(), phase, sums);
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kThreads)
    max_pooling_kernel(MaxPooling layer, const float* input, float* output, uint8_t* places) {
  max_pooling_tile(layer, input, output, places, block(), thread(), kThreads);
}

__global__ void __launch_bounds__(kThreads)
    max_pooling_backward_kernel(MaxPooling layer, const float* output_gradient,
                                const uint8_t* places, float* input_gradient) {
  max_pooling_backward_tile(layer, output_gradient, places, input_gradient, block(), thread(),
                            kThreads);
}

}  // namespace

cudaError_t launch_softmax(const LossRows& rows, int64_t batch, cudaStream_t stream) {
  if (batch > 0) softmax_kernel<<<static_cast<unsigned>(batch), kThreads, 0, stream>>>(rows);
  return cudaGetLastError();
}

cudaError_t launch_softmax_backward(const LossRows& rows, int64_t batch, float scale,
                                    float* logit_gradient, cudaStream_t stream) {
  if (batch > 0)
    softmax_backward_kernel<<<static_cast<unsigned>(batch), kThreads, 0, stream>>>(rows, scale,
                                                                                   logit_gradient);
  return cudaGetLastError();
}

cudaError_t launch_bias_relu(const BiasRelu& layer, const float* input, float* output,
                             cudaStream_t stream) {
  if (layer.count > 0)
    bias_relu_kernel<<<blocks_of(layer.count), kThreads, 0, stream>>>(layer, input, output);
  return cudaGetLastError();
}

cudaError_t launch_relu_backward(int64_t count, const float* output, const float* output_gradient,
                                 float* input_gradient, cudaStream_t stream) {
  if (count > 0)
    relu_backward_kernel<<<blocks_of(count), kThreads, 0, stream>>>(count, output, output_gradient,
                                                                    input_gradient);
  return cudaGetLastError();
}

cudaError_t launch_bias_gradient(const BiasRelu& layer, const float* output_gradient,
                                 float* bias_gradient, cudaStream_t stream) {
  if (layer.channels > 0)
    bias_gradient_kernel<<<static_cast<unsigned>(layer.channels), kThreads, 0, stream>>>(
        layer, output_gradient, bias_gradient);
  return cudaGetLastError();
}

cudaError_t launch_max_pooling(const MaxPooling& layer, const float* input, float* output,
                               uint8_t* places, cudaStream_t stream) {
  if (const int64_t count = layer.images * layer.output_height * layer.output_width; count > 0)
    max_pooling_kernel<<<blocks_of(count), kThreads, 0, stream>>>(layer, input, output, places);
  return cudaGetLastError();
}

cudaError_t launch_max_pooling_backward(const MaxPooling& layer, const float* output_gradient,
                                        const uint8_t* places, float* input_gradient,
                                        cudaStream_t stream) {
  if (const int64_t count = layer.images * layer.height * layer.width; count > 0)
    max_pooling_backward_kernel<<<blocks_of(count), kThreads, 0, stream>>>(layer, output_gradient,
                                                                           places, input_gradient);
  return cudaGetLastError();
}

cudaError_t load_layer_kernels() {
  cudaFuncAttributes attributes;
  for (const void* kernel : {reinterpret_cast<const void*>(&softmax_kernel),
                             reinterpret_cast<const void*>(&softmax_backward_kernel),
                             reinterpret_cast<const void*>(&bias_relu_kernel),
                             reinterpret_cast<const void*>(&relu_backward_kernel),
                             reinterpret_cast<const void*>(&bias_gradient_kernel),
                             reinterpret_cast<const void*>(&max_pooling_kernel),
                             reinterpret_cast<const void*>(&max_pooling_backward_kernel)})
    if (const auto status = cudaFuncGetAttributes(&attributes, kernel); status != cudaSuccess)
      return status;
  return cudaSuccess;
}

}  // namespace tutti::cuda
