// The exports of libtutti_device_fake.so: the fake device and its layers, for `--device fake-cuda`.

#include "tests/fake_cuda/fake_cuda.h"
#include "tutti/adapters/nn/kernels/cuda/trainer/gpu_layer_kernels.h"
#include "tutti/adapters/nn/kernels/cuda/trainer/gpu_steps.h"
#include "tutti/adapters/nn/kernels/layer_kernels.h"
#include "tutti/adapters/nn/kernels/layer_plugin.h"
#include "tutti/adapters/nn/kernels/step_kernels.h"
#include "tutti/tensor/device_plugin.h"

namespace tutti {

namespace {

std::unique_ptr<LayerKernels> layers(Device device) {
  return std::make_unique<cuda::GpuLayerKernels>(
      device, cuda::GpuMachine{.runtime = &device_runtime(device.kind),
                               .launcher = test::host_launcher(),
                               .cublaslt = test::fake_cublaslt,
                               .cudnn = test::fake_cudnn});
}

std::unique_ptr<StepKernels> steps(const std::vector<StepOperands>& operands) {
  return std::make_unique<cuda::GpuSteps>(device_runtime(operands.front().value.device().kind),
                                          test::host_launcher(), operands);
}

DeviceRuntime& runtime() { return test::fake_cuda(); }
std::string versions() { return "the tests' own"; }
std::vector<DeviceDescription> devices() {
  return {{"fake GPU", "host", "none", int64_t{16} << 30}};
}

}  // namespace

const DevicePlugin tutti_device_plugin = {.name = "fake",
                                          .summary = "a GPU that is none, for tests",
                                          .runtime = runtime,
                                          .versions = versions,
                                          .devices = devices};
const LayerPlugin tutti_layer_plugin = {.name = "fake", .layers = layers, .steps = steps};

}  // namespace tutti
