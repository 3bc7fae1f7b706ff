#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <string_view>

#include "tutti/tensor/device.h"

namespace tutti::cuda {

/// Throws an Error unless `status` is success: "cuda:0: cannot <what>: ..." and advice.
void check(cudaError_t status, std::string_view what, int device);
/// Clears an error that was handled, so that no later call reports it.
inline void forget_error() { static_cast<void>(cudaGetLastError()); }

/// Returns the number of GPUs. Throws Error(unavailable) with the reason if none can be used.
int count_devices();
/// Returns for example "driver 13.0, runtime 13.0".
std::string describe_versions();

}  // namespace tutti::cuda
