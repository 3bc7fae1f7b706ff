#pragma once

#include <fmt/format.h>

#include <initializer_list>
#include <utility>

#include "tutti/adapters/nn/kernels/layer_shapes.h"
#include "tutti/base/error.h"
#include "tutti/tensor/tensor.h"

namespace tutti::cuda {

/// Checks the tensors of one call and returns their memory.
class GpuOperands {
 public:
  /// `layer` is its name in errors.
  GpuOperands(const char* layer, Device device) : layer_(layer), device_(device) {}

  /// Returns the memory of a tensor with elements of type T. Throws Error(invalid_argument) for a
  /// tensor on another device, of another dtype or with strides.
  template <class T>
  T* of(const TensorView& view) const {
    check(view, dtype_of<T>());
    return view.as<T>();
  }
  template <class T>
  const T* of(const ConstTensorView& view) const {
    return of<T>(view.view());
  }
  /// Throws unless the tensor is on this device, has that dtype and has no strides.
  void require(const ConstTensorView& view, DataType dtype) const { check(view.view(), dtype); }
  /// Returns the tensor's dtype. Throws if layers do not support it, or if the memory is on another
  /// device.
  DataType float_type(const ConstTensorView& view) const {
    const auto dtype = view.view().dtype();
    if (dtype != DataType::f32 && dtype != DataType::bf16 && dtype != DataType::f16)
      refuse(view.view(), "f32, bf16 or f16");
    check(view.view(), dtype);
    return dtype;
  }

 private:
  [[noreturn]] void refuse(const TensorView& view, std::string_view wanted) const {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("{} got {}{} on {}{}; expected {} on {}, row-major", layer_,
                    to_string(view.dtype()), view.shape().to_string(), to_string(view.device()),
                    view.is_row_major() ? "" : " with strides", wanted, to_string(device_)));
  }
  void check(const TensorView& view, DataType dtype) const {
    if (view.count() > 0 &&
        (view.device() != device_ || view.dtype() != dtype || !view.is_row_major()))
      refuse(view, to_string(dtype));
  }

  const char* layer_;
  const Device device_;
};

/// Calls body(T{}), where T stores f32, bf16 or f16.
template <class Body>
void by_type(DataType dtype, Body body) {
  switch (dtype) {
    case DataType::bf16:
      return body(BFloat16{});
    case DataType::f16:
      return body(Float16{});
    default:
      return body(float{});
  }
}

}  // namespace tutti::cuda
