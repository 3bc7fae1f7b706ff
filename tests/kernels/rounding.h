#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "tutti/kernels/element.h"

namespace tutti {

/// The value of a 16-bit float's magnitude bits by the definition of the format, without the
/// library's conversions. The bits of infinity count as the next power of two, where infinity
/// becomes nearer than the largest finite number.
template <class T>
double magnitude_value(int bits) {
  constexpr int kMantissaBits = std::is_same_v<T, Float16> ? 10 : 7;
  constexpr int kBias = std::is_same_v<T, Float16> ? 15 : 127;
  const int exponent = bits >> kMantissaBits;
  const int mantissa = bits & ((1 << kMantissaBits) - 1);
  if (exponent == 0) return std::ldexp(mantissa, 1 - kBias - kMantissaBits);
  return std::ldexp(mantissa + (1 << kMantissaBits), exponent - kBias - kMantissaBits);
}

template <class T>
inline constexpr int kInfinityBits = std::is_same_v<T, Float16> ? 0x7c00 : 0x7f80;

/// The point halfway from one magnitude to the next, where rounding changes. An f32 holds it.
template <class T>
float midpoint_after(int bits) {
  return static_cast<float>((magnitude_value<T>(bits) + magnitude_value<T>(bits + 1)) / 2);
}

/// Rounds f32 magnitudes to nearest even; they must come in ascending order.
template <class T>
class AscendingRounder {
 public:
  int round(float magnitude) {
    while (bits_ < kInfinityBits<T> && is_beyond(magnitude)) {
      ++bits_;
      if (bits_ < kInfinityBits<T>) midpoint_ = midpoint_after<T>(bits_);
    }
    return bits_;
  }

 private:
  // At the midpoint itself, the even neighbour wins.
  bool is_beyond(float magnitude) const {
    return magnitude > midpoint_ || (magnitude == midpoint_ && bits_ % 2 == 1);
  }
  int bits_ = 0;
  float midpoint_ = midpoint_after<T>(0);
};

}  // namespace tutti
