#include <bit>

#include "tutti/kernels/convert.h"

namespace tutti {

namespace {
constexpr uint32_t kFloatInfinity = 0x7f800000;
}

float to_float(BFloat16 value) noexcept {
  const uint32_t bits = uint32_t{value.bits} << 16;
  const bool is_nan = (bits & 0x7fffffff) > kFloatInfinity;
  return std::bit_cast<float>(is_nan ? bits | 0x00400000 : bits);
}

float to_float(Float16 value) noexcept {
  const uint32_t sign = (value.bits & 0x8000u) << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1fu;
  const uint32_t mantissa = value.bits & 0x3ffu;
  if (exponent == 0) {
    // Zero or denormal: the mantissa counts units of 2^-24, which f32 holds exactly.
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  uint32_t bits = sign | mantissa << 13;
  if (exponent == 0x1f)
    bits |= mantissa == 0 ? kFloatInfinity : kFloatInfinity | 0x00400000;
  else
    bits |= (exponent + 127 - 15) << 23;
  return std::bit_cast<float>(bits);
}

BFloat16 to_bfloat16(float value) noexcept {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > kFloatInfinity)
    return {static_cast<uint16_t>(bits >> 16 | 0x0040)};  // quiet NaN; else it might look infinite
  // Adds half a unit of the last kept bit, minus one if that bit is even, so that ties go to even.
  // A carry out of the mantissa increases the exponent, and from the largest exponent it leads to
  // infinity.
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

Float16 to_float16(float value) noexcept {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  uint32_t result = 0;
  if (magnitude > kFloatInfinity) {
    result = 0x7e00 | (magnitude >> 13 & 0x3ff);
  } else if (magnitude >= 0x47800000) {  // 2^16 and more
    result = 0x7c00;
  } else if (magnitude >= 0x38800000) {  // 2^-14 and more: normal
    result = (magnitude - ((127 - 15) << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
  } else {
    // A denormal result, in units of 2^-24. The last bit of 0.5 is 2^-24, so adding 0.5 makes the
    // processor round to that unit. The mantissa of the sum is the result.
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    result = std::bit_cast<uint32_t>(sum) - std::bit_cast<uint32_t>(0.5f);
  }
  return {static_cast<uint16_t>(sign | result)};
}

}  // namespace tutti
