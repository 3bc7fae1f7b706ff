#include "tutti/kernels/cuda/device/calls.h"

#include <fmt/format.h>

#include "tutti/base/error.h"

namespace tutti::cuda {

namespace {

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

ErrorCode code_of(cudaError_t status) {
  switch (status) {
    case cudaErrorMemoryAllocation:
      return ErrorCode::out_of_memory;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidDevice:
    case cudaErrorInvalidResourceHandle:
      return ErrorCode::invalid_argument;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorDevicesUnavailable:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorCudartUnloading:
      return ErrorCode::unavailable;
    default:
      return ErrorCode::io;
  }
}

// Returns advice for errors whose own text contains none.
std::string_view advice(cudaError_t status) {
  switch (status) {
    case cudaErrorMemoryAllocation:
      return "free memory of the device, or use smaller tensors";
    case cudaErrorInvalidDevice:
    case cudaErrorInvalidResourceHandle:
      return "is the stream or event one of this device, and still alive?";
    case cudaErrorNoKernelImageForDevice:
      return "this GPU is older than those for which the plugin was built: build it again with "
             "-DCMAKE_CUDA_ARCHITECTURES=native";
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorMisalignedAddress:
    case cudaErrorAssert:
      return "a kernel of this process failed, maybe an earlier one; CUDA_LAUNCH_BLOCKING=1 or "
             "compute-sanitizer finds it. Start the process again";
    default:
      return "see nvidia-smi and the system's log";
  }
}

}  // namespace

void check(cudaError_t status, std::string_view what, int device) {
  if (status == cudaSuccess) return;
  forget_error();
  throw Error(
      code_of(status),
      fmt::format("{}: cannot {}: {} ({}); {}", to_string(Device{DeviceKind::cuda, device}), what,
                  cudaGetErrorString(status), cudaGetErrorName(status), advice(status)));
}

int count_devices() {
  int driver = 0, runtime = 0, count = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (driver == 0)
    throw Error(ErrorCode::unavailable,
                "no GPU: there is no NVIDIA driver (libcuda.so.1); install one, or pass the GPU "
                "into this container, or keep tensors in host memory");
  const auto status = cudaGetDeviceCount(&count);
  forget_error();
  if (status == cudaErrorInsufficientDriver)
    throw Error(ErrorCode::unavailable,
                fmt::format("no GPU: the driver serves CUDA {}, this plugin was built with {}; "
                            "install a newer driver, or build Tutti with an older CUDA",
                            version_text(driver), version_text(runtime)));
  if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0))
    throw Error(ErrorCode::unavailable,
                "no GPU: the driver is here but sees none; see nvidia-smi and "
                "CUDA_VISIBLE_DEVICES, or keep tensors in host memory");
  if (status != cudaSuccess)
    throw Error(ErrorCode::unavailable,
                fmt::format("no GPU: {} ({}); see nvidia-smi", cudaGetErrorString(status),
                            cudaGetErrorName(status)));
  return count;
}

std::string describe_versions() {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  forget_error();
  return fmt::format("driver {}, runtime {}", driver == 0 ? "none" : version_text(driver),
                     version_text(runtime));
}

}  // namespace tutti::cuda
