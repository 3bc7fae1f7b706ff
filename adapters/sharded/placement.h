#pragma once

#include <cstdint>

#include "tutti/tensor/shape.h"

namespace tutti {

/// Elements [begin, end) of a tensor, in row-major order.
struct ElementRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t count() const { return end - begin; }  // number of elements
  bool operator==(const ElementRange&) const = default;
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
  Shape shape;  // shape of the whole tensor
  Held held = Held::replicated;
  int axis_size = 1;   // number of ranks along the axis
  int axis_index = 0;  // this rank's index on the axis

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

}  // namespace tutti
