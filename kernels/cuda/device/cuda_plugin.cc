#include "tutti/kernels/cuda/device/calls.h"
#include "tutti/kernels/cuda/device/cuda_device.h"
#include "tutti/tensor/device_plugin.h"

namespace tutti {

namespace {

std::vector<DeviceDescription> describe_devices() {
  auto& runtime = cuda::cuda_device();
  std::vector<DeviceDescription> devices;
  for (int device = 0; device < runtime.count(); ++device)
    devices.push_back(runtime.describe(device));
  return devices;
}

DeviceRuntime& runtime() { return cuda::cuda_device(); }

}  // namespace

const DevicePlugin tutti_device_plugin = {.name = "cuda",
                                          .summary = "NVIDIA GPUs by CUDA",
                                          .runtime = runtime,
                                          .versions = cuda::describe_versions,
                                          .devices = describe_devices};

}  // namespace tutti
