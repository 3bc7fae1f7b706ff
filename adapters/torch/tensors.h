#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "tutti/base/error.h"
#include "tutti/tensor/tensor.h"

namespace tutti::torch {

/// A tensor of LibTorch's and the name that the module gives it.
struct ModuleTensor {
  std::string name;
  ::at::Tensor tensor;
  bool sparse = false;  // its gradients are a few rows
};

/// An Error of code `invalid_argument` about one tensor: "<name>" on rank <rank> <why>.
Error refused_tensor(const std::string& name, int rank, const std::string& why);

/// Nothing for what Tutti cannot reduce.
std::optional<DataType> dtype_of_scalar(::at::ScalarType type);

/// The tensor in the order of its memory, with its strides unless they are row-major; borrowed.
/// Throws Error(invalid_argument) for what cannot travel: gaps between elements, other devices than
/// the CPU, sparse tensors, complex and quantized elements.
TensorView view_of(const std::string& name, const ::at::Tensor& tensor, int rank);

/// The same memory as a tensor of LibTorch's, which keeps it alive.
::at::Tensor tensor_of(const Tensor& tensor);

}  // namespace tutti::torch
