#pragma once

#include <cuda.h>

#include <string_view>

namespace tutti::cuda {

/// The functions of libcuda.so.1 that the runtime library has no equals of; that library finds
/// them, so that this one does not link the driver.
struct Driver {
  decltype(&cuCtxGetCurrent) context_current = nullptr;
  decltype(&cuCtxPushCurrent) context_push = nullptr;
  decltype(&cuCtxPopCurrent) context_pop = nullptr;
  decltype(&cuDevicePrimaryCtxRetain) context_retain = nullptr;
  decltype(&cuDeviceGetAttribute) device_attribute = nullptr;
  decltype(&cuGetErrorName) error_name = nullptr;
  // Null where the driver is too old for them.
  decltype(&cuStreamWriteValue64) write_value = nullptr;
  decltype(&cuStreamBatchMemOp) batch_words = nullptr;

  /// Throws Error(unavailable) if the driver lacks any of the first.
  Driver();
  /// Throws Error(io) for anything but success.
  void check(CUresult status, std::string_view what, int device) const;
};

/// Makes a context the thread's current one for a scope. Unlike cudaSetDevice() and back, this
/// makes no context on a device that the thread happens to name and never uses.
class ContextScope {
 public:
  ContextScope(const Driver& driver, CUcontext context, int device);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  const Driver& driver_;
};

}  // namespace tutti::cuda
