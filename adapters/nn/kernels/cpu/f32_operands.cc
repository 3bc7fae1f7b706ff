#include "tutti/adapters/nn/kernels/cpu/f32_operands.h"

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/kernels/convert.h"

namespace tutti {

void F32Operands::check(const TensorView& view) const {
  const auto dtype = view.dtype();
  const bool is_known = dtype == DataType::f32 || dtype == DataType::bf16 || dtype == DataType::f16;
  if (is_known && view.device().kind == DeviceKind::cpu && view.is_row_major()) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} got a tensor {}{} on {}{}; expected f32, bf16 or f16, row-major, on "
                          "the cpu",
                          layer_, to_string(dtype), view.shape().to_string(),
                          to_string(view.device()), view.is_row_major() ? "" : " with strides"));
}

float* F32Operands::widened(int64_t count) {
  copies_.push_back(std::make_unique_for_overwrite<float[]>(static_cast<size_t>(count)));
  return copies_.back().get();
}

const float* F32Operands::read(const ConstTensorView& tensor) {
  const auto& view = tensor.view();
  check(view);
  if (view.dtype() == DataType::f32 || view.count() == 0) return view.as<float>();
  float* copy = widened(view.count());
  cast(view.dtype(), view.data(), DataType::f32, reinterpret_cast<std::byte*>(copy), view.count());
  return copy;
}

float* F32Operands::write(const TensorView& view) {
  check(view);
  if (view.dtype() == DataType::f32 || view.count() == 0) return view.as<float>();
  float* copy = widened(view.count());
  roundings_.push_back({view, copy});
  return copy;
}

float* F32Operands::update(const TensorView& view) {
  float* copy = write(view);
  if (copy != view.as<float>())
    cast(view.dtype(), view.data(), DataType::f32, reinterpret_cast<std::byte*>(copy),
         view.count());
  return copy;
}

float* F32Operands::exactly(const TensorView& view) {
  check(view);
  if (view.dtype() == DataType::f32) return view.as<float>();
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} got a parameter's gradient or a statistic in {}; expected f32",
                          layer_, to_string(view.dtype())));
}

void F32Operands::finish() {
  for (const auto& [to, from] : roundings_)
    cast(DataType::f32, reinterpret_cast<const std::byte*>(from), to.dtype(), to.data(),
         to.count());
  roundings_.clear();
}

}  // namespace tutti
