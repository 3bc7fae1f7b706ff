#include <dlpack/dlpack.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

namespace {

// DLPack defines a code for bool since version 0.8, which is newer than the header used here.
constexpr uint8_t kBoolCode = 6;

DLDataType dlpack_type(DataType dtype) {
  const auto bits = static_cast<uint8_t>(size_of(dtype) * 8);
  switch (dtype) {
    case DataType::f64:
    case DataType::f32:
    case DataType::f16:
      return {kDLFloat, bits, 1};
    case DataType::bf16:
      return {kDLBfloat, bits, 1};
    case DataType::i8:
    case DataType::i16:
    case DataType::i32:
    case DataType::i64:
      return {kDLInt, bits, 1};
    case DataType::u8:
    case DataType::u16:
    case DataType::u32:
    case DataType::u64:
    case DataType::raw:  // from_dlpack() returns it as u8
      return {kDLUInt, bits, 1};
    case DataType::boolean:
      break;
  }
  return {kBoolCode, bits, 1};
}

DataType element_type(DLDataType type) {
  if (type.lanes != 1)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a DLPack tensor has {} lanes per element; expected 1", type.lanes));
  for (int i = 0; i < kDataTypeCount; ++i) {
    const auto known = dlpack_type(static_cast<DataType>(i));
    if (known.code == type.code && known.bits == type.bits) return static_cast<DataType>(i);
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("a DLPack tensor has type code {} with {} bits; expected f64, f32, f16, "
                          "bf16, i8 to i64, u8 to u64 or bool",
                          type.code, type.bits));
}

DLDevice dlpack_device(Device device) {
  switch (device.kind) {
    case DeviceKind::cpu:
      break;
    case DeviceKind::cuda:
      return {kDLCUDA, device.index};
    case DeviceKind::fake:
      return {kDLExtDev, device.index};
  }
  return {kDLCPU, 0};
}

Device device_of(const DLDevice& device) {
  // Newer producers support devices that this enumeration lacks.
  int type = 0;
  static_assert(sizeof type == sizeof device.device_type);
  std::memcpy(&type, &device.device_type, sizeof type);
  switch (type) {
    case kDLCPU:
    case kDLCUDAHost:
      return {DeviceKind::cpu, 0};
    case kDLCUDA:
    case kDLCUDAManaged:
      return {DeviceKind::cuda, device.device_id};
    case kDLExtDev:
      return {DeviceKind::fake, device.device_id};
    default:
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("a DLPack tensor lives on device type {}; expected cpu (1) or cuda (2)",
                      type));
  }
}

Shape shape_of(const DLTensor& tensor) {
  if (tensor.ndim < 0 || (tensor.ndim > 0 && tensor.shape == nullptr))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a DLPack tensor has {} dimensions but no shape", tensor.ndim));
  return Shape(std::vector<int64_t>(tensor.shape, tensor.shape + tensor.ndim));
}

void require_dense(const DLTensor& tensor, const Shape& shape) {
  if (tensor.strides == nullptr) return;
  const std::span strides(tensor.strides, static_cast<size_t>(tensor.ndim));
  if (shape.is_row_major(strides)) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("a DLPack tensor of shape {} has strides [{}]; expected the dense [{}]: "
                          "make it contiguous first",
                          shape.to_string(), fmt::join(strides, ","),
                          fmt::join(shape.row_major_strides(), ",")));
}

// The memory that the deleter of an exported tensor frees.
struct Export {
  Tensor tensor;
  std::vector<int64_t> shape, strides;
  DLManagedTensor managed;
};

}  // namespace

Tensor from_dlpack(DLManagedTensor* managed, StreamRef stream) {
  if (managed == nullptr) throw Error(ErrorCode::invalid_argument, "a DLPack tensor is null");
  const DLTensor& tensor = managed->dl_tensor;
  const DataType dtype = element_type(tensor.dtype);
  const Device device = device_of(tensor.device);
  Shape shape = shape_of(tensor);
  require_dense(tensor, shape);
  if (tensor.data == nullptr && shape.count() > 0)
    throw Error(ErrorCode::invalid_argument, fmt::format("a DLPack tensor {}{} has no data",
                                                         to_string(dtype), shape.to_string()));
  auto* data = static_cast<std::byte*>(tensor.data);
  if (data != nullptr) data += tensor.byte_offset;
  std::shared_ptr<void> owner(managed, [](DLManagedTensor* self) {
    if (self->deleter != nullptr) self->deleter(self);
  });
  return {TensorView(data, std::move(shape), dtype, device, stream), std::move(owner)};
}

DLManagedTensor* to_dlpack(const Tensor& tensor) {
  const auto extents = tensor.shape().extents();
  auto exported = std::make_unique<Export>();
  exported->tensor = tensor;
  exported->shape.assign(extents.begin(), extents.end());
  exported->strides = tensor.shape().row_major_strides();
  exported->managed = {
      .dl_tensor = {.data = tensor.data(),
                    .device = dlpack_device(tensor.device()),
                    .ndim = tensor.shape().rank(),
                    .dtype = dlpack_type(tensor.dtype()),
                    .shape = exported->shape.data(),
                    .strides = exported->strides.data(),
                    .byte_offset = 0},
      .manager_ctx = exported.get(),
      .deleter = [](DLManagedTensor* self) { delete static_cast<Export*>(self->manager_ctx); }};
  return &exported.release()->managed;
}

}  // namespace tutti
