#pragma once

#include <optional>

#include "tutti/tensor/dtype.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti {

/// Settings of one allreduce or reduce_scatter. They must be equal on all ranks.
struct ReduceOptions {
  ReduceOp op = ReduceOp::average;  // average: the mean over the ranks
  double prescale = 1.0;            // applied before the reduction
  double postscale = 1.0;           // applied after the reduction (for average, after its division)
  std::optional<DataType> wire = std::nullopt;  // float type in which floats are sent, such as bf16
  int priority = 0;  // higher goes first among tensors that are ready together; equal on all ranks
};

}  // namespace tutti
