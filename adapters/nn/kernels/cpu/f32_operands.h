#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tutti/tensor/tensor.h"

namespace tutti {

/// The tensors of one call as f32 arrays on the CPU. f32 tensors are used in place. bf16 and f16
/// tensors become copies that are widened before the call and rounded back after it.
class F32Operands {
 public:
  /// `layer` is its name in errors.
  explicit F32Operands(const char* layer) : layer_(layer) {}

  /// Returns an array to read. Throws Error(invalid_argument) for a tensor on another device, of
  /// another dtype or with strides.
  const float* read(const ConstTensorView& view);
  /// Returns an array that the caller overwrites completely.
  float* write(const TensorView& view);
  /// Returns an array that the caller reads and writes.
  float* update(const TensorView& view);
  /// Returns an f32 tensor in place. Throws like read(), and for 16-bit tensors.
  float* exactly(const TensorView& view);
  const float* exactly(const ConstTensorView& view) { return exactly(view.view()); }
  /// Rounds the written copies into their 16-bit tensors.
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
