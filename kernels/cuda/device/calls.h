#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <string_view>

#include "tutti/tensor/device.h"

namespace tutti::cuda {

/// Throws an Error for anything but success: "cuda:0: cannot <what>: ..." and what to do.
void check(cudaError_t status, std::string_view what, int device);
/// Forgets an error that was dealt with, so that nobody else's call reports it.
inline void forget_error() { static_cast<void>(cudaGetLastError()); }

/// How many GPUs there are. Throws Error(unavailable) that says why none can be used.
int count_devices();
/// "driver 13.0, runtime 13.0"
std::string describe_versions();

}  // namespace tutti::cuda
