#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/tensor/tensor.h"

namespace tutti {

class Communicator;

/// Elements [begin, end) of a tensor, in row-major order.
struct ElementRange {
  int64_t begin = 0;                                     // the first element
  int64_t end = 0;                                       // one past the last
  int64_t count() const { return end - begin; }          // number of elements
  bool operator==(const ElementRange&) const = default;  // compares both ends
};

/// Says what a rank holds of a tensor that a group of ranks holds together.
enum class Held {
  replicated,   // each rank has all of it, equal on all ranks
  divided,      // each rank has a range of its own
  partial_sum,  // each rank has an addend of all of it, such as a gradient before it is reduced
  own,          // each rank has all of it with its own values, such as momenta between exchanges
};

/// Says where the elements of a tensor are, along one axis of ranks.
struct Placement {
  Shape shape;                   // shape of the whole tensor
  Held held = Held::replicated;  // what each rank has
  int axis_size = 1;             // number of ranks along the axis
  int axis_index = 0;            // this rank's index on the axis

  /// Returns the range that a rank of the axis holds. A divided tensor has equal parts, and the
  /// lowest ranks get the remainder, as Communicator::reduce_scatter deals rows.
  ElementRange of(int index) const {
    const int64_t count = shape.count();
    if (held != Held::divided) return {0, count};
    const int64_t each = count / axis_size, rest = count % axis_size;
    const auto begin_of = [&](int64_t i) { return i * each + (i < rest ? i : rest); };
    return {begin_of(index), begin_of(index + 1)};
  }
  ElementRange here() const { return of(axis_index); }  // the range of this rank
};

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

/// Returns the Euclidean norm over all elements of these tensors. Each element is counted once:
/// every rank adds its part of a divided tensor, and one rank adds a replicated tensor. The norm is
/// computed in f64 and equal to the bit on all ranks. It is collective, and every rank passes the
/// same list. Tensors must be f32 or f64; Error(invalid_argument) is thrown for others and for
/// partial sums.
double global_norm(Communicator& comm, const std::vector<PlacedTensor>& tensors);

}  // namespace tutti
