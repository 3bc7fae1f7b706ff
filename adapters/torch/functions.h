#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string>

#include "tutti/core/communicator.h"

/// Collectives of LibTorch tensors through which autograd can go back. Backward is a collective,
/// too, whose name has ".backward" appended. So every rank that calls one forward must also run
/// backward, in the same order. Each function returns a new tensor, and the input may have any
/// layout. For host memory it blocks until the result is complete. On a GPU torch's current stream
/// waits for the result, and the next collective throws an error of this one. The functions can be
/// differentiated once. They throw the errors of the Communicator and of view_of(). Each rank's
/// gradient is that of the sum of all ranks' losses.
namespace tutti::torch {

/// Returns the sum or average of all ranks' tensors. Backward does the same with the gradients.
::at::Tensor allreduce(Communicator& comm, const std::string& name, const ::at::Tensor& input,
                       ReduceOp op = ReduceOp::sum);
/// Returns all ranks' rows one after another. The ranks may have different numbers of rows.
/// Backward returns the sum of the gradients of this rank's rows.
::at::Tensor allgather(Communicator& comm, const std::string& name, const ::at::Tensor& input);
/// Returns root's tensor. All ranks' tensors must have its shape and dtype. Backward returns the
/// sum of the gradients at root, and zeros elsewhere.
::at::Tensor broadcast(Communicator& comm, const std::string& name, const ::at::Tensor& input,
                       int root = 0);
/// Returns this rank's share of the summed rows. Shares are equal, and the lowest ranks get the
/// remainder. Backward gathers the gradients of all shares.
::at::Tensor reduce_scatter(Communicator& comm, const std::string& name, const ::at::Tensor& input);
/// Sends `splits` rows to each rank (empty: equal parts) and returns the received rows in rank
/// order. Backward sends the gradients back.
::at::Tensor alltoall(Communicator& comm, const std::string& name, const ::at::Tensor& input,
                      std::span<const int64_t> splits = {});

}  // namespace tutti::torch
