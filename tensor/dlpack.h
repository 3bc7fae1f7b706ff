#pragma once

#include "tutti/tensor/tensor.h"

// This is DLPack's own struct (<dlpack/dlpack.h>), which Python's __dlpack__ capsules hold.
struct DLManagedTensor;

namespace tutti {

/// Takes over a DLPack tensor without a copy. Its deleter is called once, by whichever thread
/// releases the last Tensor on this memory. Throws Error(invalid_argument) for a tensor that a
/// Tensor cannot represent (gaps between rows, several lanes, an unsupported type or device); the
/// caller then still owns the DLPack tensor. Its contents become ready on `stream`.
Tensor from_dlpack(DLManagedTensor* managed, StreamRef stream = {});

/// Returns a DLPack tensor of the same memory, which it keeps alive until its deleter is called.
/// The caller, or the code to which the caller passes the result, must call the deleter once.
/// Pinned host memory counts as host memory here, and the tests' fake device is DLPack's extension
/// device.
DLManagedTensor* to_dlpack(const Tensor& tensor);

}  // namespace tutti
