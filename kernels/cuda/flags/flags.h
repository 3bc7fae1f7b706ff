#pragma once

#include <cuda_runtime_api.h>

#include "tutti/kernels/cuda/flags/flag_tile.h"

namespace tutti::cuda {

/// One rank's part of an allreduce by flags, on the current device, in stream order. All blocks of
/// all ranks must run together: for ranks with a device each, and at most kMostFlagBlocks blocks.
/// A wait that takes longer than `nanos` is left, and told in call.record.
cudaError_t launch_flags(const FlagCall& call, uint64_t nanos, cudaStream_t stream);

/// As load_kernels() does.
cudaError_t load_flag_kernels();

}  // namespace tutti::cuda
