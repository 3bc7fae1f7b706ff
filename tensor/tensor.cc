#include "tutti/tensor/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>

#include "tutti/base/error.h"
#include "tutti/base/process/fork_guard.h"
#include "tutti/tensor/device_runtime.h"

namespace tutti {

TensorView TensorView::reshaped(Shape shape) const {
  if (shape.count() != count())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a tensor of shape {} cannot take shape {}: {} elements are not {}",
                            shape_.to_string(), shape.to_string(), count(), shape.count()));
  if (!is_row_major() && shape != shape_)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a tensor of shape {} with strides [{}] cannot take shape {}; only "
                            "row-major ones can",
                            shape_.to_string(), fmt::join(strides(), ","), shape.to_string()));
  return TensorView(data_, std::move(shape), dtype_, device_, stream_).with_strides(strides_);
}

std::vector<int64_t> TensorView::strides() const {
  if (strides_ == nullptr) return shape_.row_major_strides();
  return {strides_, strides_ + shape_.rank()};
}

Tensor::Tensor(TensorView view, std::shared_ptr<void> owner)
    : view_(std::move(view)), owner_(std::move(owner)) {
  if (!view_.is_row_major())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a Tensor is row-major; one of shape {} with strides [{}] can only be "
                            "viewed",
                            view_.shape().to_string(), fmt::join(view_.strides(), ",")));
}

Tensor::Tensor(Shape shape, DataType dtype, Device device) {
  int64_t bytes = 0;
  if (__builtin_mul_overflow(shape.count(), size_of(dtype), &bytes))
    throw Error(ErrorCode::out_of_memory,
                fmt::format("a tensor {}{} has more bytes than 64 bits count", to_string(dtype),
                            shape.to_string()));
  auto& runtime = device_runtime(device.kind);
  void* memory = runtime.allocate(static_cast<size_t>(bytes), device);
  owner_ = std::shared_ptr<void>(memory, [&runtime, device, guard = ForkGuard()](void* pointer) {
    // A forked process does not free a device's memory. The device belongs to the parent alone, and
    // the fork may have inherited the runtime's locks in the locked state.
    if (device.kind == DeviceKind::cpu || !guard.forked()) runtime.free(pointer, device);
  });
  if (device.kind != DeviceKind::cuda) std::memset(memory, 0, static_cast<size_t>(bytes));
  view_ = TensorView(memory, std::move(shape), dtype, device);
}

Tensor Tensor::clone() const {
  Tensor copy(shape(), dtype(), device());
  auto& runtime = device_runtime(device().kind);
  runtime.copy(copy.data(), data(), static_cast<size_t>(bytes()), view_.stream());
  finish_stream(device(), view_.stream());
  return copy;
}

}  // namespace tutti
