#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "tutti/tensor/device_runtime.h"

namespace tutti::cuda {

/// Launch DeviceRuntime::pack() and unpack() as kernels on the current device, without waiting for
/// them. Pointer arguments are borrowed for the call.
cudaError_t launch_pack(const DeviceBucket& bucket, std::span<const Piece> pieces, Scale scale,
                        bool veto, cudaStream_t stream);
cudaError_t launch_unpack(const DeviceBucket& bucket, std::span<const Piece> pieces, Scale scale,
                          const DeviceOutcome& outcome, cudaStream_t stream);

/// Launches DeviceRuntime::reduce(), of at least one element, as one kernel.
cudaError_t launch_reduce(const DeviceReduction& reduction, cudaStream_t stream);

/// These two serve devices without stream memory operations. Each launches one thread, which stores
/// `value` in the word, or polls the word until it is at least `value`.
cudaError_t launch_write_word(uint64_t* word, uint64_t value, cudaStream_t stream);
cudaError_t launch_wait_word(const uint64_t* word, uint64_t value, cudaStream_t stream);

/// Loads the kernels into the current device in advance, because loading at the first launch may
/// wait for blocked streams.
cudaError_t load_kernels();

}  // namespace tutti::cuda
