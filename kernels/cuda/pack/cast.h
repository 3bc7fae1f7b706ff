#pragma once

// Casts and scales one element on a GPU, with results that equal those of kernels/scaling.h bit for
// bit. All of it compiles for the host too, so that the tests compare the two without a GPU.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tutti/tensor/packing.h"

#ifdef __CUDACC__
#define TUTTI_DEVICE __host__ __device__ __forceinline__
#else
#define TUTTI_DEVICE inline
#endif

namespace tutti::cuda {

/// A Scale with its quotient factor / divisor, which the host computes.
struct Scaling {
  double factor = 1.0;
  double multiplier = 1.0;  // factor / divisor
  int64_t divisor = 1;
  bool is_one = true;
};

/// Computes size_of() as a shift, because a table would be copied into each thread's memory.
TUTTI_DEVICE constexpr int64_t bytes_of(DataType dtype) {
  return static_cast<int64_t>(0x11842184212248ull >> 4 * static_cast<int>(dtype) & 15);
}
constexpr bool agrees_with_size_of() {
  for (int i = 0; i < kDataTypeCount; ++i)
    if (bytes_of(static_cast<DataType>(i)) != size_of(static_cast<DataType>(i))) return false;
  return true;
}
static_assert(agrees_with_size_of());

TUTTI_DEVICE uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
TUTTI_DEVICE float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// --- 16-bit floats (kernels/float_convert.cc explains the arithmetic) ----------------------------

inline constexpr uint32_t kFloatInfinityBits = 0x7f800000;

TUTTI_DEVICE float widen(BFloat16 value) {
  const uint32_t bits = uint32_t{value.bits} << 16;
  return float_of((bits & 0x7fffffff) > kFloatInfinityBits ? bits | 0x00400000 : bits);
}

TUTTI_DEVICE float widen(Float16 value) {
  const uint32_t sign = (value.bits & 0x8000u) << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1fu;
  const uint32_t mantissa = value.bits & 0x3ffu;
  if (exponent == 0)
    return float_of(bits_of(static_cast<float>(mantissa) * 5.9604644775390625e-08f) | sign);
  if (exponent == 0x1f)
    return float_of(sign | kFloatInfinityBits | (mantissa == 0 ? 0 : 0x00400000 | mantissa << 13));
  return float_of(sign | mantissa << 13 | (exponent + 127 - 15) << 23);
}

template <class To>
TUTTI_DEVICE To narrow(float value);

template <>
TUTTI_DEVICE BFloat16 narrow<BFloat16>(float value) {
  const uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffff) > kFloatInfinityBits) return {static_cast<uint16_t>(bits >> 16 | 0x0040)};
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

template <>
TUTTI_DEVICE Float16 narrow<Float16>(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  uint32_t result = 0;
  if (magnitude > kFloatInfinityBits)
    result = 0x7e00 | (magnitude >> 13 & 0x3ff);
  else if (magnitude >= 0x47800000)
    result = 0x7c00;
  else if (magnitude >= 0x38800000)
    result = (magnitude - ((127 - 15) << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
  else
    result = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000;
  return {static_cast<uint16_t>(sign | result)};
}

/// Returns an f32 that rounds to the same 16-bit float as `value`. It is `value` truncated toward
/// zero, with the last bit set if the truncation lost anything. f64 and 64-bit integers both
/// compare exactly with the truncated value.
TUTTI_DEVICE float round_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  const double back = static_cast<double>(nearest);
  const double excess = (back < 0 ? -back : back) - (value < 0 ? -value : value);
  if (excess > 0) return float_of((bits_of(nearest) - 1) | 1);
  if (excess < 0) return float_of(bits_of(nearest) | 1);
  return nearest;
}
TUTTI_DEVICE float round_to_odd(uint64_t value) {
  if (value < (uint64_t{1} << 53)) return round_to_odd(static_cast<double>(value));
  // Keeps the upper 53 bits, and combines all lower bits into one sticky bit. A float has 24 bits,
  // so the later rounding is the same.
  return round_to_odd(static_cast<double>(value >> 11 | ((value & 0x7ff) != 0)) * 2048.0);
}
TUTTI_DEVICE float round_to_odd(int64_t value) {
  const uint64_t magnitude = value < 0 ? 0 - static_cast<uint64_t>(value) : value;
  const float rounded = round_to_odd(magnitude);
  return value < 0 ? -rounded : rounded;
}

// --- the pairs of types that gradients use -------------------------------------------------------

template <class T>
struct IsNarrow {
  static constexpr bool value = false;
};
template <>
struct IsNarrow<Float16> {
  static constexpr bool value = true;
};
template <>
struct IsNarrow<BFloat16> {
  static constexpr bool value = true;
};

/// Casts between floats: scaled in f32 (f64 if either side is f64) and rounded once. Multiplying by
/// one changes nothing, so scaled and unscaled casts share this code.
template <class To, class From>
TUTTI_DEVICE To cast_float(From value, double multiplier) {
  constexpr bool kWide = sizeof(From) == 8 || sizeof(To) == 8;
  float single = 0;
  if constexpr (IsNarrow<From>::value)
    single = widen(value);
  else if constexpr (!kWide)
    single = value;
  if constexpr (!kWide) {
    single *= static_cast<float>(multiplier);
    if constexpr (IsNarrow<To>::value)
      return narrow<To>(single);
    else
      return single;
  } else {
    double number;
    if constexpr (IsNarrow<From>::value)
      number = single;
    else
      number = static_cast<double>(value);
    number *= multiplier;
    if constexpr (IsNarrow<To>::value)
      return narrow<To>(round_to_odd(number));
    else
      return static_cast<To>(number);
  }
}

// --- all pairs of types --------------------------------------------------------------------------

/// An element of any type, widened without loss.
struct Number {
  enum Kind : uint8_t { single, wide, natural, integer } kind;
  float f32;
  double f64;
  uint64_t u64;
  int64_t i64;
};

template <class T>
TUTTI_DEVICE T load_bytes(const std::byte* data) {
  T value;
  memcpy(&value, data, sizeof value);
  return value;
}

TUTTI_DEVICE Number load_number(DataType dtype, const std::byte* data) {
  const auto single = [](float value) { return Number{Number::single, value, 0, 0, 0}; };
  const auto natural = [](uint64_t value) { return Number{Number::natural, 0, 0, value, 0}; };
  const auto integer = [](int64_t value) { return Number{Number::integer, 0, 0, 0, value}; };
  switch (dtype) {
    case DataType::f64:
      return {Number::wide, 0, load_bytes<double>(data), 0, 0};
    case DataType::f32:
      return single(load_bytes<float>(data));
    case DataType::f16:
      return single(widen(load_bytes<Float16>(data)));
    case DataType::bf16:
      return single(widen(load_bytes<BFloat16>(data)));
    case DataType::i8:
      return integer(load_bytes<int8_t>(data));
    case DataType::i16:
      return integer(load_bytes<int16_t>(data));
    case DataType::i32:
      return integer(load_bytes<int32_t>(data));
    case DataType::i64:
      return integer(load_bytes<int64_t>(data));
    case DataType::u8:
      return natural(load_bytes<uint8_t>(data));
    case DataType::u16:
      return natural(load_bytes<uint16_t>(data));
    case DataType::u32:
      return natural(load_bytes<uint32_t>(data));
    case DataType::u64:
      return natural(load_bytes<uint64_t>(data));
    case DataType::boolean:
      return natural(load_bytes<uint8_t>(data) != 0);
    case DataType::raw:
      return natural(load_bytes<uint8_t>(data));
  }
  return natural(0);
}

/// Converts a float to a 64-bit integer within [least, most]: truncates toward zero; NaN becomes 0.
/// `low` is `least` and `limit` is `most` + 1, as floats.
template <class To, class From>
TUTTI_DEVICE To saturate(From value, From low, From limit, To least, To most) {
  if (value != value) return 0;
  if (value < low) return least;
  if (value >= limit) return most;
  return static_cast<To>(value);
}

template <class T>
TUTTI_DEVICE T to_integer(const Number& number) {
  constexpr bool kSigned = static_cast<T>(-1) < T{0};
  constexpr int kDigits = 8 * static_cast<int>(sizeof(T)) - (kSigned ? 1 : 0);
  constexpr T kMost =
      kSigned ? static_cast<T>((uint64_t{1} << (kDigits - 1)) - 1 + (uint64_t{1} << (kDigits - 1)))
              : static_cast<T>(~T{0});
  constexpr T kLeast = kSigned ? static_cast<T>(-kMost - 1) : T{0};
  constexpr double kLimit = static_cast<double>(uint64_t{1} << (kDigits - 1)) * 2;
  switch (number.kind) {
    case Number::single:
      return saturate<T, float>(number.f32, static_cast<float>(kLeast), static_cast<float>(kLimit),
                                kLeast, kMost);
    case Number::wide:
      return saturate<T, double>(number.f64, static_cast<double>(kLeast), kLimit, kLeast, kMost);
    case Number::natural:
      return number.u64 > static_cast<uint64_t>(kMost) ? kMost : static_cast<T>(number.u64);
    case Number::integer:
      break;
  }
  if (number.i64 < 0) {
    if (!kSigned || number.i64 < static_cast<int64_t>(kLeast)) return kLeast;
    return static_cast<T>(number.i64);
  }
  return static_cast<uint64_t>(number.i64) > static_cast<uint64_t>(kMost)
             ? kMost
             : static_cast<T>(number.i64);
}

TUTTI_DEVICE double to_wide(const Number& number) {
  switch (number.kind) {
    case Number::single:
      return static_cast<double>(number.f32);
    case Number::wide:
      return number.f64;
    case Number::natural:
      return static_cast<double>(number.u64);
    case Number::integer:
      break;
  }
  return static_cast<double>(number.i64);
}

TUTTI_DEVICE float to_single(const Number& number, bool for_16_bits) {
  switch (number.kind) {
    case Number::single:
      return number.f32;
    case Number::wide:
      return for_16_bits ? round_to_odd(number.f64) : static_cast<float>(number.f64);
    case Number::natural:
      return for_16_bits ? round_to_odd(number.u64) : static_cast<float>(number.u64);
    case Number::integer:
      break;
  }
  return for_16_bits ? round_to_odd(number.i64) : static_cast<float>(number.i64);
}

TUTTI_DEVICE bool is_zero(const Number& number) {
  switch (number.kind) {
    case Number::single:
      return number.f32 == 0;
    case Number::wide:
      return number.f64 == 0;
    case Number::natural:
      return number.u64 == 0;
    case Number::integer:
      break;
  }
  return number.i64 == 0;
}

template <class T>
TUTTI_DEVICE void store_bytes(std::byte* data, T value) {
  memcpy(data, &value, sizeof value);
}

TUTTI_DEVICE void store_number(DataType dtype, std::byte* data, const Number& number) {
  switch (dtype) {
    case DataType::f64:
      return store_bytes(data, to_wide(number));
    case DataType::f32:
      return store_bytes(data, to_single(number, false));
    case DataType::f16:
      return store_bytes(data, narrow<Float16>(to_single(number, true)));
    case DataType::bf16:
      return store_bytes(data, narrow<BFloat16>(to_single(number, true)));
    case DataType::i8:
      return store_bytes(data, to_integer<int8_t>(number));
    case DataType::i16:
      return store_bytes(data, to_integer<int16_t>(number));
    case DataType::i32:
      return store_bytes(data, to_integer<int32_t>(number));
    case DataType::i64:
      return store_bytes(data, to_integer<int64_t>(number));
    case DataType::u8:
      return store_bytes(data, to_integer<uint8_t>(number));
    case DataType::u16:
      return store_bytes(data, to_integer<uint16_t>(number));
    case DataType::u32:
      return store_bytes(data, to_integer<uint32_t>(number));
    case DataType::u64:
      return store_bytes(data, to_integer<uint64_t>(number));
    case DataType::boolean:
      return store_bytes(data, static_cast<uint8_t>(!is_zero(number)));
    case DataType::raw:
      return store_bytes(data, to_integer<uint8_t>(number));
  }
}

/// Scales a number by a scale other than one. Neither the number's type nor `to` is bool.
TUTTI_DEVICE Number scaled(const Number& number, DataType to, const Scaling& scaling) {
  const bool from_float = number.kind == Number::single || number.kind == Number::wide;
  if (from_float && number.kind == Number::single && to != DataType::f64 && is_float(to))
    return {Number::single, number.f32 * static_cast<float>(scaling.multiplier), 0, 0, 0};
  if (from_float || is_float(to))
    return {Number::wide, 0, to_wide(number) * scaling.multiplier, 0, 0};
  Number quotient = number;
  quotient.u64 /= static_cast<uint64_t>(scaling.divisor);
  quotient.i64 /= scaling.divisor;
  if (scaling.factor == 1.0) return quotient;
  return {Number::wide, 0, to_wide(quotient) * scaling.factor, 0, 0};
}

/// Writes scale(value at `from`) to `to`. Neither address needs to be aligned.
TUTTI_DEVICE void cast_any(DataType from_type, const std::byte* from, DataType to_type,
                           std::byte* to, const Scaling& scaling) {
  const Number number = load_number(from_type, from);
  const bool is_scaled =
      !scaling.is_one && from_type != DataType::boolean && to_type != DataType::boolean;
  store_number(to_type, to, is_scaled ? scaled(number, to_type, scaling) : number);
}

}  // namespace tutti::cuda
