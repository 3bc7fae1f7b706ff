#pragma once

#include "tutti/tensor/tensor.h"

namespace tutti {

/// The tensor reads as zeros, and the system has back what whole pages it took; they come again
/// when they are written. For host memory of a process' own (a heap, an anonymous mapping); what is
/// shared or belongs to a file is only filled with zeros.
void drop_contents(const TensorView& tensor);

}  // namespace tutti
