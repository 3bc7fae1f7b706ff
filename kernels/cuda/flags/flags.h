#pragma once

#include <cuda_runtime_api.h>

#include "tutti/kernels/cuda/flags/flag_tile.h"

namespace tutti::cuda {

/// Launches one rank's part of an allreduce by flags on the current device, in stream order. All
/// blocks of all ranks must run at the same time, so each rank needs its own device and at most
/// kMostFlagBlocks blocks. A wait that exceeds `nanos` is abandoned and reported in call.record.
cudaError_t launch_flags(const FlagCall& call, uint64_t nanos, cudaStream_t stream);

/// Loads the kernels into the current device, like load_kernels().
cudaError_t load_flag_kernels();

}  // namespace tutti::cuda
