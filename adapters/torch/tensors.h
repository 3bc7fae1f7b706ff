#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "tutti/base/error.h"
#include "tutti/tensor/tensor.h"

namespace tutti::torch {

/// A LibTorch tensor and the name that the module gives it.
struct ModuleTensor {
  std::string name;
  ::at::Tensor tensor;
  bool sparse = false;  // its gradients are a few rows
};

/// Returns an Error of code `invalid_argument` about one tensor: "<name>" on rank <rank> <why>.
Error refused_tensor(const std::string& name, int rank, const std::string& why);

/// Returns nothing for a type that Tutti cannot reduce.
std::optional<DataType> dtype_of_scalar(::at::ScalarType type);

/// Returns torch's current stream of the device in this thread, and no stream for the host. Throws
/// Error(unavailable) if this LibTorch does not give access to the handles of its streams.
StreamRef current_stream(::c10::Device device);

/// Returns a view of the tensor in the order of its memory, with its strides unless they are
/// row-major. The memory is borrowed. On a GPU it is complete at the current point of torch's
/// current stream. Throws Error(invalid_argument) for tensors that cannot be sent. These have gaps
/// between elements, are sparse, are on devices other than CPU and CUDA, or have complex or
/// quantized elements.
TensorView view_of(const std::string& name, const ::at::Tensor& tensor, int rank);

/// Returns the same host memory as a LibTorch tensor, which keeps the memory alive.
::at::Tensor tensor_of(const Tensor& tensor);

}  // namespace tutti::torch
