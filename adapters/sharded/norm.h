#pragma once

#include <vector>

#include "tutti/adapters/sharded/placed_tensor.h"
#include "tutti/core/communicator.h"

namespace tutti {

/// Returns the Euclidean norm over all elements of these tensors. Each element is counted once:
/// every rank adds its part of a divided tensor, and one rank adds a replicated tensor. The norm is
/// computed in f64 and equal to the bit on all ranks. It is collective, and every rank passes the
/// same list. Tensors must be f32 or f64; Error(invalid_argument) is thrown for others and for
/// partial sums.
double global_norm(Communicator& comm, const std::vector<PlacedTensor>& tensors);

}  // namespace tutti
