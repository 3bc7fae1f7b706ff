#pragma once

#include "tutti/tensor/tensor.h"

namespace tutti {

/// Makes the tensor read as zeros and returns its whole pages to the system, which supplies them
/// again when they are written. This works for a process's private memory (a heap, an anonymous
/// mapping). Shared memory and mapped files are only filled with zeros.
void drop_contents(const TensorView& tensor);

}  // namespace tutti
