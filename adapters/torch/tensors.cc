#include "tutti/adapters/torch/tensors.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/version.h>

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

template <class Stream>
constexpr bool kTellsHandle = requires(const Stream& stream) {
  stream.native_handle();
};

// Returns the handle of LibTorch's stream, for any kind of device. CUDA is neither included nor
// linked for it.
template <class Stream>
void* handle_of(const Stream& stream) {
  std::string why = "it is older";
  if constexpr (kTellsHandle<Stream>) {
    try {
      return stream.native_handle();
    } catch (const ::c10::Error& error) {
      why = error.what_without_backtrace();
    }
  }
  throw Error(
      ErrorCode::unavailable,
      fmt::format("LibTorch {} does not give access to the streams of a GPU ({}), so tensors there "
                  "cannot travel; take 2.15 or later, or move the model to the CPU",
                  TORCH_VERSION, why));
}

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

StreamRef current_stream(::c10::Device device) {
  if (device.is_cpu()) return {};
  return {handle_of(::c10::impl::VirtualGuardImpl(device.type()).getStream(device))};
}

TensorView view_of(const std::string& name, const ::at::Tensor& tensor, int rank) {
  const auto type = ::c10::toString(tensor.scalar_type());
  const auto device = tensor.device();
  if (!(device.is_cpu() || device.is_cuda()) || tensor.layout() != ::at::kStrided)
    throw refused_tensor(
        name, rank,
        fmt::format("is a {} tensor on {}, expected a dense one in host memory or on a GPU of "
                    "CUDA; move the model there before distributed()",
                    tensor.layout() == ::at::kStrided ? "dense" : "sparse", device.str()));
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
  const Device place = device.is_cpu() ? Device{} : Device{DeviceKind::cuda, device.index()};
  const TensorView view(tensor.data_ptr(), shape, *dtype, place, current_stream(device));
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
