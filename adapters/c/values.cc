#include "tutti/adapters/c/values.h"

#include <algorithm>

#include "tutti/adapters/c/sized.h"

namespace tutti::c {

Communicator& communicator_of(tutti_comm_t comm) {
  need(comm, "comm");
  return *comm->communicator;
}

DataType dtype_from(int dtype) {
  if (dtype < 0 || dtype >= kDataTypeCount)
    throw refused(fmt::format("{} is not a dtype (expected 0 to {})", dtype, kDataTypeCount - 1));
  return static_cast<DataType>(dtype);
}

ReduceOp op_from(int op) {
  if (op < 0 || op >= kReduceOpCount)
    throw refused(fmt::format("{} is not an op (expected 0 to {})", op, kReduceOpCount - 1));
  return static_cast<ReduceOp>(op);
}

Device device_from(int device, int index, const char* what) {
  if (device != TUTTI_CPU && device != TUTTI_CUDA)
    throw refused(
        fmt::format("{} lies on device {} (expected TUTTI_CPU or TUTTI_CUDA)", what, device));
  return {static_cast<DeviceKind>(device), index};
}

Shape shape_from(const int64_t* extents, int dimensions, const char* what) {
  if (dimensions < 0 || dimensions > TUTTI_MAX_DIMENSIONS)
    throw refused(fmt::format("{} has {} dimensions (expected 0 to {})", what, dimensions,
                              TUTTI_MAX_DIMENSIONS));
  if (dimensions == 1) return {extents[0]};
  return Shape(std::span(extents, static_cast<size_t>(dimensions)));
}

TensorView view_of(const tutti_tensor_t* tensor, const char* what) {
  need(tensor, what);
  return {tensor->data,
          shape_from(tensor->shape, tensor->dimensions, what),
          dtype_from(tensor->dtype),
          device_from(tensor->device, tensor->device_index, what),
          {tensor->stream}};
}

TensorView view_or_none(const tutti_tensor_t* tensor, const char* what) {
  return tensor == nullptr ? TensorView() : view_of(tensor, what);
}

std::span<const int64_t> one_per_rank(const Communicator& communicator, const int64_t* numbers) {
  if (numbers == nullptr) return {};
  return {numbers, static_cast<size_t>(communicator.size())};
}

const tutti_reduce_options_t& read_options(const tutti_reduce_options_t* given,
                                           tutti_reduce_options_t& room) {
  const auto& options = known_part(given, room, tutti_reduce_options_t TUTTI_REDUCE_OPTIONS,
                                   "the options", "TUTTI_REDUCE_OPTIONS");
  if (options.reserved != 0)
    throw refused(
        fmt::format("reserved of the options is {} (expected 0); start from "
                    "TUTTI_REDUCE_OPTIONS",
                    options.reserved));
  return options;
}

ReduceOptions options_from(const tutti_reduce_options_t* given) {
  if (given == nullptr) return {};
  tutti_reduce_options_t room;
  const auto& options = read_options(given, room);
  ReduceOptions result;
  result.op = op_from(options.op);
  result.prescale = options.prescale;
  result.postscale = options.postscale;
  result.priority = options.priority;
  if (options.wire != -1) result.wire = dtype_from(options.wire);
  return result;
}

tutti_tensor_t tensor_of(const TensorView& view) {
  if (view.shape().rank() > TUTTI_MAX_DIMENSIONS)
    throw refused(fmt::format("a result has {} dimensions, more than the {} of tutti_tensor_t",
                              view.shape().rank(), TUTTI_MAX_DIMENSIONS));
  tutti_tensor_t tensor = {};
  tensor.data = view.data();
  tensor.dtype = static_cast<int32_t>(view.dtype());
  tensor.dimensions = view.shape().rank();
  std::copy_n(view.shape().extents().begin(), view.shape().rank(), tensor.shape);
  tensor.device = static_cast<int32_t>(view.device().kind);
  tensor.device_index = view.device().index;
  return tensor;
}

}  // namespace tutti::c
