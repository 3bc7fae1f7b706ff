#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "tutti/tensor/device_runtime.h"

namespace tutti::cuda {

/// DeviceRuntime::pack() and unpack() as kernels on the current device. They return at once, what
/// they are given by pointer is borrowed for the call.
cudaError_t launch_pack(const DeviceBucket& bucket, std::span<const Piece> pieces, Scale scale,
                        bool veto, cudaStream_t stream);
cudaError_t launch_unpack(const DeviceBucket& bucket, std::span<const Piece> pieces, Scale scale,
                          const DeviceOutcome& outcome, cudaStream_t stream);

/// DeviceRuntime::reduce(), of one element at least, by one launch.
cudaError_t launch_reduce(const DeviceReduction& reduction, cudaStream_t stream);

/// For devices that have no stream memory operations: one thread that stores a word, or looks at
/// one until it is at least `value`.
cudaError_t launch_write_word(uint64_t* word, uint64_t value, cudaStream_t stream);
cudaError_t launch_wait_word(const uint64_t* word, uint64_t value, cudaStream_t stream);

/// Loads the kernels into the current device now, so that no first launch does it: loading may wait
/// for streams that are held.
cudaError_t load_kernels();

}  // namespace tutti::cuda
