#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>

#include "tutti/core/communicator.h"

namespace tutti::torch {

/// Exchanges a parameter's gradients that are a few rows, as those of a sparse embedding. Gradients
/// uses it like its slots.
class SparseRows {
 public:
  /// The communicator must outlive it; the parameter is [rows, ...].
  SparseRows(Communicator& comm, std::string name, const ::at::Tensor& parameter)
      : comm_(comm), name_(std::move(name)), parameter_(parameter) {}

  /// Sends this rank's gradient. It is undefined if this rank has none.
  void send(const ::at::Tensor& gradient, ReduceOp op);
  /// Waits and returns the sum or average of all ranks' rows, coalesced. It is undefined if no rank
  /// had any.
  ::at::Tensor wait();

 private:
  Communicator& comm_;
  std::string name_;
  ::at::Tensor parameter_;
  ::at::Tensor indices_, values_;  // being sent
  Work work_;
};

}  // namespace tutti::torch
