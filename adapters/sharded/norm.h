#pragma once

#include <vector>

#include "tutti/adapters/sharded/placed_tensor.h"
#include "tutti/core/communicator.h"

namespace tutti {

/// The Euclidean norm over all elements of these tensors, each counted once: of what is divided
/// every rank adds its part, of what is replicated one of them. In f64, equal to the bit on all
/// ranks. Collective: every rank has the same list. f32 and f64; throws Error(invalid_argument) for
/// others and for partial sums.
double global_norm(Communicator& comm, const std::vector<PlacedTensor>& tensors);

}  // namespace tutti
