#pragma once

#include "tutti/tensor/tensor.h"

// DLPack's own struct (<dlpack/dlpack.h>), the one that Python's __dlpack__ capsules hold.
struct DLManagedTensor;

namespace tutti {

/// Takes over a DLPack tensor without a copy: its deleter is called once, when the last Tensor on
/// this memory is gone, from whatever thread that is. Throws Error(invalid_argument) for what a
/// Tensor cannot be (gaps between rows, several lanes, a foreign type or device) and then leaves
/// the DLPack tensor with the caller. `stream` is where its contents become ready.
Tensor from_dlpack(DLManagedTensor* managed, StreamRef stream = {});

/// The same memory as a DLPack tensor, which keeps it alive until its deleter is called; the
/// caller, or whom it hands the result to, calls that once. Pinned host memory is host memory here,
/// and the tests' fake device is DLPack's extension device.
DLManagedTensor* to_dlpack(const Tensor& tensor);

}  // namespace tutti
