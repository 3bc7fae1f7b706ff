#pragma once

#include "tutti/adapters/sharded/placed_tensor.h"
#include "tutti/core/communicator.h"
#include "tutti/tensor/shape.h"

namespace tutti {

constexpr const char* kManifestName = "/manifest.json";  // path in the folder of a step

/// Returns the shape of a tensor as files store it. If each rank has its own tensor, these are
/// stored one after another.
Shape stored_shape(const Placement& placement);
/// Throws Error(invalid_argument) if a tensor of this rank cannot be saved or loaded as its
/// placement says.
void check_placed(const Communicator& comm, const PlacedTensor& tensor);

}  // namespace tutti
