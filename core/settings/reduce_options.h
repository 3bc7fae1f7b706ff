#pragma once

#include <optional>

#include "tutti/tensor/dtype.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti {

/// Settings of one allreduce or reduce_scatter. What ranks give must be equal.
struct ReduceOptions {
  ReduceOp op = ReduceOp::average;              // average: the mean over the ranks
  double prescale = 1.0;                        // applied before the reduction
  double postscale = 1.0;                       // applied after it (after the division of average)
  std::optional<DataType> wire = std::nullopt;  // a float type, as bf16, in which floats travel
  int priority = 0;  // higher goes first among what is ready at once; equal on all ranks
};

}  // namespace tutti
