#include "tutti/adapters/torch/tensors.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <optional>
#include <span>
#include <utility>

namespace tutti::torch {

namespace {

constexpr std::array<std::pair<DataType, ::at::ScalarType>, 10> kTypes = {{
    {DataType::f64, ::at::kDouble},
    {DataType::f32, ::at::kFloat},
    {DataType::f16, ::at::kHalf},
    {DataType::bf16, ::at::kBFloat16},
    {DataType::i8, ::at::kChar},
    {DataType::i16, ::at::kShort},
    {DataType::i32, ::at::kInt},
    {DataType::i64, ::at::kLong},
    {DataType::u8, ::at::kByte},
    {DataType::boolean, ::at::kBool},
}};

}  // namespace

std::optional<DataType> dtype_of_scalar(::at::ScalarType wanted) {
  for (const auto& [dtype, type] : kTypes)
    if (type == wanted) return dtype;
  return std::nullopt;
}

Error refused_tensor(const std::string& name, int rank, const std::string& why) {
  return Error(ErrorCode::invalid_argument, fmt::format("\"{}\" on rank {} {}", name, rank, why))
      .with_rank(rank)
      .with_tensor(name);
}

TensorView view_of(const std::string& name, const ::at::Tensor& tensor, int rank) {
  const auto type = ::c10::toString(tensor.scalar_type());
  if (!tensor.device().is_cpu() || tensor.layout() != ::at::kStrided)
    throw refused_tensor(
        name, rank,
        fmt::format("is a {} tensor on {}, want a dense one in host memory; move "
                    "the model to the CPU before distributed()",
                    tensor.layout() == ::at::kStrided ? "dense" : "sparse", tensor.device().str()));
  const auto dtype = dtype_of_scalar(tensor.scalar_type());
  if (!dtype)
    throw refused_tensor(name, rank,
                         fmt::format("has elements of type {}, which do not travel; split them "
                                     "into real parts (at::view_as_real)",
                                     type));
  const Shape shape(std::span<const int64_t>(tensor.sizes().data(), tensor.sizes().size()));
  const std::span<const int64_t> strides(tensor.strides().data(), tensor.strides().size());
  if (!shape.is_dense(strides))
    throw refused_tensor(name, rank,
                         fmt::format("has shape {} and strides [{}], which leave gaps or overlap; "
                                     "give the module a contiguous tensor",
                                     shape.to_string(), fmt::join(strides, ",")));
  const TensorView view(tensor.data_ptr(), shape, *dtype);
  return shape.is_row_major(strides) ? view : view.with_strides(strides.data());
}

::at::Tensor tensor_of(const Tensor& tensor) {
  ::at::ScalarType type = ::at::kFloat;
  for (const auto& [dtype, same] : kTypes)
    if (dtype == tensor.dtype()) type = same;
  const auto extents = tensor.shape().extents();
  const ::at::IntArrayRef sizes(extents.data(), extents.size());
  if (tensor.count() == 0) return ::at::empty(sizes, type);
  return ::at::from_blob(
      tensor.data(), sizes, [owner = tensor](void*) {}, ::at::TensorOptions(type));
}

}  // namespace tutti::torch
