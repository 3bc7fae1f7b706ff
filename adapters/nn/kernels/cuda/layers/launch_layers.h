#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace tutti::cuda {

/// Launches kernel `index` of AllKernels on the current device, in stream order.
cudaError_t launch_kernel(size_t index, const void* kernel, int64_t blocks, cudaStream_t stream);
/// Loads all kernels of AllKernels into the current device, like load_kernels().
cudaError_t load_layer_kernels();

}  // namespace tutti::cuda
