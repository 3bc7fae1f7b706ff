#pragma once

#include <cstddef>

#include "tutti/tensor/tensor.h"

namespace tutti {

/// A tensor's bytes, as its stream leaves them, into memory of the host, in the order of memory.
/// Waits for that stream; a device's come through a few MiB of pinned memory, whatever their
/// number. Throws what the device does, after a kernel that failed, say.
void copy_to_host(std::byte* target, const ConstTensorView& source);
/// The way back, in the order of the tensor's stream; they have arrived when this returns.
void copy_from_host(const TensorView& target, const std::byte* source);
/// The tensor itself if it lives in the host's memory, else a copy there: see copy_to_host().
Tensor on_host(const Tensor& tensor);

}  // namespace tutti
