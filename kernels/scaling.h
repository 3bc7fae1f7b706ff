#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "tutti/kernels/convert.h"
#include "tutti/kernels/element.h"

/// The arithmetic of one element, which defines Scale and cast(). The reference kernels are loops
/// over these functions. The vectorised kernels call them where speed does not matter.
namespace tutti {

template <class T>
inline constexpr bool kIsFloat =
    std::is_floating_point_v<T> || std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;

/// The type in which a float type accumulates: f64 for f64, else f32.
template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;

inline double multiplier(Scale scale) { return scale.factor / static_cast<double>(scale.divisor); }

/// Returns `value` as f32, rounded so that rounding it again to 16 bits gives the same as rounding
/// `value` directly. An inexact result is truncated toward zero and its last bit is set, so that it
/// never looks like a tie ("round to odd").
template <class Wide>
float round_to_odd(Wide value) {
  // long double holds every f64 and every 64-bit integer.
  const auto nearest = static_cast<float>(value);
  const auto excess =
      std::fabs(static_cast<long double>(nearest)) - std::fabs(static_cast<long double>(value));
  if (excess > 0) return std::bit_cast<float>((std::bit_cast<uint32_t>(nearest) - 1) | 1);
  if (excess < 0) return std::bit_cast<float>(std::bit_cast<uint32_t>(nearest) | 1);
  return nearest;  // exact, infinite or NaN
}

/// Converts a float to an integer: truncates toward zero and saturates; NaN becomes 0.
template <class To, class From>
To saturate_to(From value) {
  constexpr auto kLow = static_cast<From>(std::numeric_limits<To>::min());
  // 2^digits is exact in every float type; max() may not be.
  const From high = std::ldexp(From{1}, std::numeric_limits<To>::digits);
  if (std::isnan(value)) return 0;
  if (value < kLow) return std::numeric_limits<To>::min();
  if (value >= high) return std::numeric_limits<To>::max();
  return static_cast<To>(value);
}

/// Converts a number to another type, rounding once.
template <class To, class From>
To convert_number(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<From, Float16> || std::is_same_v<From, BFloat16>) {
    return convert_number<To>(to_float(value));
  } else if constexpr (std::is_same_v<From, Boolean>) {
    return convert_number<To>(static_cast<uint8_t>(value.byte != 0));
  } else if constexpr (std::is_same_v<To, Boolean>) {
    return {static_cast<uint8_t>(value != 0)};
  } else if constexpr (std::is_same_v<To, Float16>) {
    if constexpr (std::is_same_v<From, float>)
      return to_float16(value);
    else
      return to_float16(round_to_odd(value));
  } else if constexpr (std::is_same_v<To, BFloat16>) {
    if constexpr (std::is_same_v<From, float>)
      return to_bfloat16(value);
    else
      return to_bfloat16(round_to_odd(value));
  } else if constexpr (std::is_floating_point_v<To>) {
    return static_cast<To>(value);
  } else if constexpr (std::is_floating_point_v<From>) {
    return saturate_to<To>(value);
  } else {
    if (std::cmp_less(value, std::numeric_limits<To>::min())) return std::numeric_limits<To>::min();
    if (std::cmp_greater(value, std::numeric_limits<To>::max()))
      return std::numeric_limits<To>::max();
    return static_cast<To>(value);
  }
}

/// Multiplies an integer quotient by the factor in f64.
template <class To, class Wide>
To multiply_quotient(Wide quotient, Scale scale) {
  if (scale.factor == 1.0) return convert_number<To>(quotient);
  return saturate_to<To>(static_cast<double>(quotient) * scale.factor);
}

/// Applies a Scale to an integer: divides exactly, then multiplies in f64.
template <class To, class From>
To scale_integer(From value, Scale scale) {
  using Wide = std::conditional_t<std::is_signed_v<From>, int64_t, uint64_t>;
  return multiply_quotient<To>(static_cast<Wide>(value) / static_cast<Wide>(scale.divisor), scale);
}

__extension__ typedef __int128 Int128;
__extension__ typedef unsigned __int128 Uint128;

/// The type in which integers of an average are summed. It does not overflow for any number of
/// ranks.
template <class T>
using WideSum =
    std::conditional_t<sizeof(T) < 8, std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>,
                       std::conditional_t<std::is_signed_v<T>, Int128, Uint128>>;

/// Returns the average of integers, given their sum. The quotient is truncated toward zero. It fits
/// into 64 bits, because at most `scale.divisor` inputs are nonzero.
template <class T>
T average_of_sum(WideSum<T> sum, Scale scale) {
  using Quotient = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
  const auto quotient = static_cast<Quotient>(sum / static_cast<WideSum<T>>(scale.divisor));
  return multiply_quotient<T>(quotient, scale);
}

/// Returns scale(value) in another type; this defines cast().
template <class To, class From>
To cast_one(From value, Scale scale) {
  if constexpr (std::is_same_v<From, Boolean> || std::is_same_v<To, Boolean>) {
    return convert_number<To>(value);
  } else {
    if (scale.is_one()) return convert_number<To>(value);
    if constexpr (kIsFloat<From> && kIsFloat<To>) {
      using Wide = std::conditional_t<std::is_same_v<From, double>, double, Accumulator<To>>;
      return convert_number<To>(convert_number<Wide>(value) * static_cast<Wide>(multiplier(scale)));
    } else if constexpr (kIsFloat<From> || kIsFloat<To>) {
      return convert_number<To>(convert_number<double>(value) * multiplier(scale));
    } else {
      return scale_integer<To>(value, scale);
    }
  }
}

}  // namespace tutti
