#pragma once

#include <fmt/format.h>

#include <initializer_list>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/kernels/layers/layer_shapes.h"
#include "tutti/tensor/tensor.h"

namespace tutti::cuda {

/// Checks the tensors of one call and hands out their memory.
class GpuOperands {
 public:
  /// `layer` stands in errors.
  GpuOperands(const char* layer, Device device) : layer_(layer), device_(device) {}

  /// The memory of a tensor of type T. Throws Error(invalid_argument) for one elsewhere, of another
  /// type or with strides.
  template <class T>
  T* of(const TensorView& view) const {
    check(view, dtype_of<T>());
    return view.as<T>();
  }
  template <class T>
  const T* of(const ConstTensorView& view) const {
    return of<T>(view.view());
  }
  /// Throws unless the tensor is here, of that type and without strides.
  void require(const ConstTensorView& view, DataType dtype) const { check(view.view(), dtype); }
  /// Throws for a type that layers do not compute with, or memory elsewhere.
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

/// Calls body(T{}) with the storage type of f32, bf16 or f16.
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
