#pragma once

#include <cstddef>

#include "tutti/tensor/tensor.h"

namespace tutti {

/// Copies a tensor's bytes to host memory, in the order of memory, after the work queued on its
/// stream. Waits for that stream. A device's bytes pass through a few MiB of pinned memory, however
/// large the tensor is. Throws the device's error, for example after a kernel that failed.
void copy_to_host(std::byte* target, const ConstTensorView& source);
/// Copies host memory to a tensor in the order of the tensor's stream. The copy is complete when
/// this returns.
void copy_from_host(const TensorView& target, const std::byte* source);
/// Returns the tensor itself if its memory is the host's, else a host copy: see copy_to_host().
Tensor on_host(const Tensor& tensor);

}  // namespace tutti
