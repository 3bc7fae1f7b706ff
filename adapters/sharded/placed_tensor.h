#pragma once

#include <string>
#include <vector>

#include "tutti/adapters/sharded/placement.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

/// A tensor of the training state, with a name that is equal on all ranks. `here` holds this rank's
/// elements, the range placement.here() of the whole tensor in row-major order.
struct PlacedTensor {
  std::string name;     // equal on all ranks
  TensorView here;      // the elements of this rank
  Placement placement;  // which elements each rank has
};

/// Returns the parameters (name, value) of a trainer as "parameter.NAME". They are equal on all
/// ranks.
template <class Parameters>
std::vector<PlacedTensor> placed_parameters(Parameters&& parameters) {
  std::vector<PlacedTensor> all;
  for (const auto& parameter : parameters) {
    const TensorView value = parameter.value;
    all.push_back({"parameter." + std::string(parameter.name), value, {value.shape()}});
  }
  return all;
}

/// Returns the state (name, tensor) of an optimizer as "optimizer.NAME". It is equal on all ranks,
/// too.
template <class States>
std::vector<PlacedTensor> placed_state(States&& states) {
  std::vector<PlacedTensor> all;
  for (const auto& state : states) {
    const TensorView tensor = state.tensor;
    all.push_back({"optimizer." + std::string(state.name), tensor, {tensor.shape()}});
  }
  return all;
}

}  // namespace tutti
