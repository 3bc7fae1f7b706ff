#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>

#include "tutti/core/communicator.h"

namespace tutti::torch {

/// A parameter whose gradients are a few rows, as those of a sparse embedding, on their way over
/// the ranks. Used as Gradients uses its slots.
class SparseRows {
 public:
  /// The communicator must outlive it; the parameter is [rows, ...].
  SparseRows(Communicator& comm, std::string name, const ::at::Tensor& parameter)
      : comm_(comm), name_(std::move(name)), parameter_(parameter) {}

  /// Undefined: this rank has none.
  void send(const ::at::Tensor& gradient, ReduceOp op);
  /// What all ranks' rows come to, coalesced; undefined where no rank had any.
  ::at::Tensor wait();

 private:
  Communicator& comm_;
  std::string name_;
  ::at::Tensor parameter_;
  ::at::Tensor indices_, values_;  // on their way
  Work work_;
};

}  // namespace tutti::torch
