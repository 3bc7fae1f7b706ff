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

/// torch's current stream of that device in this thread; none of the host. Throws
/// Error(unavailable) where LibTorch does not tell what is beneath its streams.
StreamRef current_stream(::c10::Device device);

/// The tensor in the order of its memory, with its strides unless they are row-major; borrowed. One
/// of a GPU is complete where torch's current stream is now. Throws Error(invalid_argument) for
/// what cannot travel: gaps between elements, other devices than the CPU and CUDA's, sparse
/// tensors, complex and quantized elements.
TensorView view_of(const std::string& name, const ::at::Tensor& tensor, int rank);

/// The same memory of the host as a tensor of LibTorch's, which keeps it alive.
::at::Tensor tensor_of(const Tensor& tensor);

}  // namespace tutti::torch
