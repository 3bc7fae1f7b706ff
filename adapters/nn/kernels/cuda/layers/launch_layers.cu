#include "tutti/adapters/nn/kernels/cuda/layers/kernel_list.h"
#include "tutti/adapters/nn/kernels/cuda/layers/launch_layers.h"

namespace tutti::cuda {

namespace {

template <class Kernel>
__global__ void __launch_bounds__(kThreads, 1) run_kernel(const Kernel kernel) {
  __shared__ typename Kernel::Shared shared;
  for (int phase = 0; phase < Kernel::kPhases; ++phase) {
    kernel.run(static_cast<int64_t>(blockIdx.x), static_cast<int>(threadIdx.x), phase, shared);
    if (phase + 1 < Kernel::kPhases) __syncthreads();
  }
}

template <class Kernel>
void launch(const void* kernel, unsigned blocks, cudaStream_t stream) {
  run_kernel<<<blocks, kThreads, 0, stream>>>(*static_cast<const Kernel*>(kernel));
}

struct Entry {
  void (*launch)(const void* kernel, unsigned blocks, cudaStream_t stream);
  const void* function;
};

template <class... Kernel>
const Entry& entry_of(Kernels<Kernel...>, size_t index) {
  static const Entry entries[] = {
      {launch<Kernel>, reinterpret_cast<const void*>(&run_kernel<Kernel>)}...};
  return entries[index];
}

}  // namespace

cudaError_t launch_kernel(size_t index, const void* kernel, int64_t blocks, cudaStream_t stream) {
  entry_of(AllKernels(), index).launch(kernel, static_cast<unsigned>(blocks), stream);
  return cudaGetLastError();
}

cudaError_t load_layer_kernels() {
  cudaFuncAttributes attributes;
  for (size_t i = 0; i < AllKernels::kCount; ++i)
    if (const auto status = cudaFuncGetAttributes(&attributes, entry_of(AllKernels(), i).function);
        status != cudaSuccess)
      return status;
  return cudaSuccess;
}

}  // namespace tutti::cuda
