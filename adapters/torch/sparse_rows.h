#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>

#include "tutti/core/communicator.h"

namespace tutti::torch {

/// Exchanges the gradients of a parameter of which each step touches only a few rows, such as a
/// sparse embedding. The class Gradients has one such object for each sparse parameter.
class SparseRows {
 public:
  /// The communicator must outlive this object. The parameter is [rows, ...].
  SparseRows(Communicator& comm, std::string name, const ::at::Tensor& parameter)
      : comm_(comm), name_(std::move(name)), parameter_(parameter) {}

  /// Sends this rank's gradient. `gradient` is undefined if this rank has none.
  void send(const ::at::Tensor& gradient, ReduceOp op);
  /// Waits and returns the sum or average of all ranks' rows, coalesced. The result is undefined if
  /// no rank had any rows.
  ::at::Tensor wait();

 private:
  Communicator& comm_;
  std::string name_;
  ::at::Tensor parameter_;
  ::at::Tensor indices_, values_;  // being sent; must stay in memory
  Work work_;
};

}  // namespace tutti::torch
