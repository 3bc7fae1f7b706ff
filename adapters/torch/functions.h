#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string>

#include "tutti/core/communicator.h"

/// Collectives of LibTorch tensors that a loss may go through: backward is a collective too, under
/// the name with ".backward" behind it, so every rank that calls one forward calls backward, in the
/// same order. Each returns a new tensor; the input may be laid out in any way. Of host memory each
/// blocks until the result is there; of a GPU torch's current stream waits for it, and an error
/// comes with the next collective. Once differentiable. They throw what the Communicator's own
/// throw, and what view_of() throws. Each rank's gradient is that of the sum of all ranks' losses.
namespace tutti::torch {

/// The sum or average of all ranks' tensors. Backward: the same of the gradients.
::at::Tensor allreduce(Communicator& comm, const std::string& name, const ::at::Tensor& input,
                       ReduceOp op = ReduceOp::sum);
/// All ranks' rows, one after another; their numbers may differ. Backward: the sum of the gradients
/// of this rank's rows.
::at::Tensor allgather(Communicator& comm, const std::string& name, const ::at::Tensor& input);
/// Root's tensor, of the shape and type of everyone's. Backward: the sum of the gradients at root,
/// zeros elsewhere.
::at::Tensor broadcast(Communicator& comm, const std::string& name, const ::at::Tensor& input,
                       int root = 0);
/// This rank's share of the summed rows, in equal parts, the remainder to the lowest ranks.
/// Backward: all shares' gradients.
::at::Tensor reduce_scatter(Communicator& comm, const std::string& name, const ::at::Tensor& input);
/// `splits` rows to each rank (empty: equal parts), and theirs in rank order. Backward: the way
/// back.
::at::Tensor alltoall(Communicator& comm, const std::string& name, const ::at::Tensor& input,
                      std::span<const int64_t> splits = {});

}  // namespace tutti::torch
