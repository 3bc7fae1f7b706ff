#pragma once

#include <cuda_runtime_api.h>

#include "tutti/kernels/cuda/steps/step_tile.h"

namespace tutti::cuda {

/// On the current device, in stream order: the norm of all gradients and whether they are numbers,
/// into `control` (two launches).
cudaError_t launch_gradient_norm(const StepTable& table, StepControl* control, cudaStream_t stream);
/// The optimizer's step over all parameters, as `control` says by then (one launch).
cudaError_t launch_step(const StepTable& table, const StepControl* control, cudaStream_t stream);

/// As load_kernels() does.
cudaError_t load_step_kernels();

}  // namespace tutti::cuda
