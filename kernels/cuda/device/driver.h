#pragma once

#include <cuda.h>

#include <string_view>

namespace tutti::cuda {

/// Functions of libcuda.so.1 that have no equivalent in the runtime library. The runtime library
/// looks them up, so that this plugin does not link the driver.
struct Driver {
  decltype(&cuCtxGetCurrent) context_current = nullptr;
  decltype(&cuCtxPushCurrent) context_push = nullptr;
  decltype(&cuCtxPopCurrent) context_pop = nullptr;
  decltype(&cuDevicePrimaryCtxRetain) context_retain = nullptr;
  decltype(&cuDeviceGetAttribute) device_attribute = nullptr;
  decltype(&cuGetErrorName) error_name = nullptr;
  // Null if the driver is too old for these functions.
  decltype(&cuStreamWriteValue64) write_value = nullptr;
  decltype(&cuStreamBatchMemOp) batch_words = nullptr;

  /// Throws Error(unavailable) if the driver lacks any of the required functions.
  Driver();
  /// Throws Error(io) unless `status` is success.
  void check(CUresult status, std::string_view what, int device) const;
};

/// Makes a context the calling thread's current one for a scope. A pair of calls of cudaSetDevice()
/// could create a context on the thread's previous device; this class never does.
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
