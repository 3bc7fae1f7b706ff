#pragma once

#include <string>
#include <vector>

#include "tutti/adapters/sharded/placement.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

/// A tensor of a training's state, by a name that is equal on all ranks: `here` are the elements
/// that this rank holds, placement.here() of the whole, row-major.
struct PlacedTensor {
  std::string name;     // equal on all ranks
  TensorView here;      // the elements of this rank
  Placement placement;  // which elements each rank has
};

/// The parameters of a trainer (name, value), named "parameter.NAME". They are equal on all ranks.
template <class Parameters>
std::vector<PlacedTensor> placed_parameters(Parameters&& parameters) {
  std::vector<PlacedTensor> all;
  for (const auto& parameter : parameters) {
    const TensorView value = parameter.value;
    all.push_back({"parameter." + std::string(parameter.name), value, {value.shape()}});
  }
  return all;
}

/// Optimizers' state (name, tensor), likewise.
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
