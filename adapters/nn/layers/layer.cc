#include <fmt/format.h>

#include "tutti/adapters/nn/kernels/layer_kernels.h"
#include "tutti/adapters/nn/layers/layers.h"
#include "tutti/base/error.h"
#include "tutti/tensor/absent_memory.h"
#include "tutti/tensor/device_runtime.h"

namespace tutti::nn {

Tensor copy_of(const Pass& pass, const Tensor& tensor) {
  Tensor copy = pass.kernels.make_tensor(tensor.shape(), tensor.dtype());
  device_runtime(tensor.device().kind)
      .copy(copy.data(), tensor.data(), static_cast<size_t>(tensor.bytes()), copy.view().stream());
  return copy;
}

void Layer::attach(const std::string& path) {
  path_ = path;
  for (auto* parameter : parameters()) parameter->name = path + "." + parameter->name;
  for (auto* buffer : buffers()) buffer->name = path + "." + buffer->name;
}

void Layer::require_whole() {
  if (!AbsentMemory::any()) return;
  for (const auto* parameter : parameters()) require_present(parameter->name, parameter->value);
  for (const auto* parameter : borrowed()) require_present(parameter->name, parameter->value);
}

void Layer::require_input(const Tensor& input, bool good, const char* wanted) {
  require_whole();
  const auto dtype = input.dtype();
  if (good && (dtype == DataType::f32 || dtype == DataType::bf16 || dtype == DataType::f16)) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("layer {}{}{} got {}{}, expected f32, bf16 or f16 {}", path_,
                          path_.empty() ? "" : ": ", kind(), to_string(dtype),
                          input.shape().to_string(), wanted));
}

void Layer::announce() {
  for (const auto* parameter : parameters())
    if (*parameter->ready) (*parameter->ready)(parameter->name);
}

}  // namespace tutti::nn
