// Exports the record of libtutti_layers_cuda.so: layers and steps on GPUs.

#include "tutti/adapters/nn/kernels/cuda/layers/launch_layers.h"
#include "tutti/adapters/nn/kernels/cuda/trainer/gpu_layer_kernels.h"
#include "tutti/adapters/nn/kernels/cuda/trainer/gpu_steps.h"
#include "tutti/adapters/nn/kernels/layer_plugin.h"
#include "tutti/kernels/cuda/device/calls.h"

namespace tutti {

namespace {

class CudaLauncher final : public cuda::Launcher {
 public:
  CudaLauncher(DeviceRuntime& runtime, Device device) : runtime_(runtime), device_(device) {
    runtime_.make_current(device_);
    // All kernels are loaded now, because loading one at its first launch waits for running work.
    cuda::check(cuda::load_layer_kernels(), "load the layers' kernels", device_.index);
  }

 private:
  void put(size_t index, const void* kernel, int64_t blocks, StreamRef stream) override {
    runtime_.make_current(device_);
    cuda::check(
        cuda::launch_kernel(index, kernel, blocks, static_cast<cudaStream_t>(stream.native)),
        "launch a layer's kernel", device_.index);
  }

  DeviceRuntime& runtime_;
  const Device device_;
};

std::shared_ptr<cuda::Launcher> launcher_of(Device device) {
  return std::make_shared<CudaLauncher>(device_runtime(device.kind), device);
}

std::unique_ptr<LayerKernels> layers(Device device) {
  return std::make_unique<cuda::GpuLayerKernels>(
      device, cuda::GpuMachine{.runtime = &device_runtime(device.kind),
                               .launcher = launcher_of(device),
                               .cublaslt = [] { return cuda::load_cublaslt(); },
                               .cudnn = [] { return cuda::load_cudnn(); }});
}

std::unique_ptr<StepKernels> steps(const std::vector<StepOperands>& operands) {
  const auto device = operands.front().value.device();
  return std::make_unique<cuda::GpuSteps>(device_runtime(device.kind), launcher_of(device),
                                          operands);
}

}  // namespace

const LayerPlugin tutti_layer_plugin = {.name = "cuda", .layers = layers, .steps = steps};

}  // namespace tutti
