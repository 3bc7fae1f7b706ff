#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tutti/tensor/tensor.h"

namespace tutti {

/// The tensors of one call as f32 arrays on the CPU: f32 ones as they are, bf16 and f16 ones as
/// copies that are widened before the call and rounded back after it.
class F32Operands {
 public:
  /// `layer` stands in errors.
  explicit F32Operands(const char* layer) : layer_(layer) {}

  /// Throws Error(invalid_argument) for a tensor elsewhere, of another type or with strides.
  const float* read(const ConstTensorView& view);
  /// To be overwritten wholly.
  float* write(const TensorView& view);
  /// To be read and written.
  float* update(const TensorView& view);
  /// An f32 tensor, in place. Throws as read() and for 16-bit ones.
  float* exactly(const TensorView& view);
  const float* exactly(const ConstTensorView& view) { return exactly(view.view()); }
  /// Rounds what was written into its place.
  void finish();

 private:
  struct Rounding {
    TensorView to;
    const float* from;
  };
  void check(const TensorView& view) const;
  float* widened(int64_t count);

  const char* layer_;
  std::vector<std::unique_ptr<float[]>> copies_;
  std::vector<Rounding> roundings_;
};

/// target[i] += source[i]
inline void add_to(float* target, const float* source, int64_t count) {
  for (int64_t i = 0; i < count; ++i) target[i] += source[i];
}

}  // namespace tutti
