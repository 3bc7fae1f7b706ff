#pragma once

#include <cstdint>
#include <string_view>

namespace tutti {

/// How elements of several ranks become one. The numbers are part of the wire format and the C ABI.
enum class ReduceOp : uint8_t {
  sum = 0,
  average = 1,
  min = 2,
  max = 3,
  product = 4,
  band = 5,
  bor = 6
};
inline constexpr int kReduceOpCount = 7;

constexpr std::string_view to_string(ReduceOp op) noexcept {
  constexpr std::string_view kNames[kReduceOpCount] = {"sum",     "average", "min", "max",
                                                       "product", "band",    "bor"};
  return kNames[static_cast<int>(op)];
}

/// A factor and a whole divisor, kept apart so that integer averages stay exact. On floats an
/// element x becomes x * (factor / divisor), computed in f32 (f64 for f64) and rounded once; on
/// integers (x / divisor) truncated toward zero, then, if factor is not 1, multiplied in f64,
/// truncated toward zero and saturated. Booleans are left alone.
struct Scale {
  double factor = 1.0;
  int64_t divisor = 1;
  bool is_one() const { return factor == 1.0 && divisor == 1; }
};

}  // namespace tutti
