#include "tutti/kernels/cuda/device/driver.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/tensor/device.h"

namespace tutti::cuda {

namespace {

// All of these functions have had their current signature in every CUDA version from 12.0 on.
constexpr unsigned kVersion = 12000;

template <class Function>
bool find(Function& function, const char* name) {
  void* found = nullptr;
  auto result = cudaDriverEntryPointSymbolNotFound;
  const auto status =
      cudaGetDriverEntryPointByVersion(name, &found, kVersion, cudaEnableDefault, &result);
  static_cast<void>(cudaGetLastError());
  if (status != cudaSuccess || result != cudaDriverEntryPointSuccess) return false;
  function = reinterpret_cast<Function>(found);
  return found != nullptr;
}

}  // namespace

Driver::Driver() {
  if (!find(context_current, "cuCtxGetCurrent") || !find(context_push, "cuCtxPushCurrent") ||
      !find(context_pop, "cuCtxPopCurrent") || !find(context_retain, "cuDevicePrimaryCtxRetain") ||
      !find(device_attribute, "cuDeviceGetAttribute") || !find(error_name, "cuGetErrorName"))
    throw Error(ErrorCode::unavailable,
                "no GPU: the driver lacks functions of CUDA 12.0; install a newer driver");
  if (!find(write_value, "cuStreamWriteValue64") || !find(batch_words, "cuStreamBatchMemOp"))
    write_value = nullptr;
}

void Driver::check(CUresult status, std::string_view what, int device) const {
  if (status == CUDA_SUCCESS) return;
  const char* name = nullptr;
  error_name(status, &name);
  throw Error(ErrorCode::io, fmt::format("{}: cannot {}: {}; see nvidia-smi and the system's log",
                                         to_string(Device{DeviceKind::cuda, device}), what,
                                         name ? name : "unknown error of the driver"));
}

ContextScope::ContextScope(const Driver& driver, CUcontext context, int device) : driver_(driver) {
  driver.check(driver.context_push(context), "become the current device", device);
}

ContextScope::~ContextScope() {
  CUcontext popped;
  driver_.context_pop(&popped);
}

}  // namespace tutti::cuda
