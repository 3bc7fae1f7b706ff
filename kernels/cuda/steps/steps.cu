#include "tutti/kernels/cuda/steps/steps.h"

namespace tutti::cuda {

namespace {

__global__ void __launch_bounds__(kThreads) squares_kernel(StepTable table) {
  __shared__ double shared[kThreads];
  for (int phase = 0; phase <= kSumPhases; ++phase) {
    squares_tile(table, static_cast<int32_t>(blockIdx.x), static_cast<int>(threadIdx.x), phase,
                 shared);
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kThreads) settle_kernel(StepTable table, StepControl* control) {
  __shared__ double shared[kThreads];
  for (int phase = 0; phase <= kSumPhases; ++phase) {
    settle_tile(table, *control, static_cast<int>(threadIdx.x), phase, shared);
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kThreads)
    step_kernel(StepTable table, const StepControl* control) {
  step_tile(table, *control, static_cast<int32_t>(blockIdx.x), static_cast<int>(threadIdx.x),
            kThreads);
}

}  // namespace

cudaError_t launch_gradient_norm(const StepTable& table, StepControl* control,
                                 cudaStream_t stream) {
  if (table.tile_count > 0)
    squares_kernel<<<static_cast<unsigned>(table.tile_count), kThreads, 0, stream>>>(table);
  settle_kernel<<<1, kThreads, 0, stream>>>(table, control);
  return cudaGetLastError();
}

cudaError_t launch_step(const StepTable& table, const StepControl* control, cudaStream_t stream) {
  if (table.tile_count > 0)
    step_kernel<<<static_cast<unsigned>(table.tile_count), kThreads, 0, stream>>>(table, control);
  return cudaGetLastError();
}

cudaError_t load_step_kernels() {
  cudaFuncAttributes attributes;
  for (const void* kernel :
       {reinterpret_cast<const void*>(&squares_kernel),
        reinterpret_cast<const void*>(&settle_kernel), reinterpret_cast<const void*>(&step_kernel)})
    if (const auto status = cudaFuncGetAttributes(&attributes, kernel); status != cudaSuccess)
      return status;
  return cudaSuccess;
}

}  // namespace tutti::cuda
