#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace tutti {

/// Element types. The numbers are part of the wire format and of the C ABI.
enum class DataType : uint8_t {
  f64 = 0,
  f32 = 1,
  f16 = 2,
  bf16 = 3,
  i8 = 4,
  i16 = 5,
  i32 = 6,
  i64 = 7,
  u8 = 8,
  u16 = 9,
  u32 = 10,
  u64 = 11,
  boolean = 12,
  raw = 13,  // bytes that mean something to the program alone (fp8, complex numbers, structs):
             // moved by all kinds that only move, and reduced by none
};
/// How many there are.
inline constexpr int kDataTypeCount = 14;

/// 16-bit floats as storage; arithmetic happens in f32 (kernels/).
struct Float16 {
  uint16_t bits;                                    // sign, 5 of the exponent, 10 of the fraction
  bool operator==(const Float16&) const = default;  // of bits, so NaNs may be equal
};
/// The same, of 8 exponent bits.
struct BFloat16 {
  uint16_t bits;                                     // sign, 8 of the exponent, 7 of the fraction
  bool operator==(const BFloat16&) const = default;  // of bits, so NaNs may be equal
};

/// Bytes of an element, by DataType. Not within size_of(), which would write it to the stack first.
inline constexpr int64_t kDataTypeSizes[kDataTypeCount] = {8, 4, 2, 2, 1, 2, 4,
                                                           8, 1, 2, 4, 8, 1, 1};
/// Bytes of an element.
constexpr int64_t size_of(DataType dtype) noexcept {
  return kDataTypeSizes[static_cast<int>(dtype)];
}
/// "f32" and so on.
constexpr std::string_view to_string(DataType dtype) noexcept {
  constexpr std::string_view kNames[kDataTypeCount] = {"f64", "f32", "f16",  "bf16", "i8",
                                                       "i16", "i32", "i64",  "u8",   "u16",
                                                       "u32", "u64", "bool", "raw"};
  return kNames[static_cast<int>(dtype)];
}
/// Of 16 bits, too.
constexpr bool is_float(DataType dtype) noexcept {
  return static_cast<int>(dtype) <= static_cast<int>(DataType::bf16);
}
/// Signed or not; bool and raw are none.
constexpr bool is_integer(DataType dtype) noexcept {
  return !is_float(dtype) && dtype != DataType::boolean && dtype != DataType::raw;
}
/// False for a number that came from elsewhere and is no type.
constexpr bool is_valid(DataType dtype) noexcept {
  return static_cast<int>(dtype) < kDataTypeCount;
}

/// The DataType of a C++ type; only element types of tensors have one.
template <class T>
constexpr DataType dtype_of() {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<U, double>)
    return DataType::f64;
  else if constexpr (std::is_same_v<U, float>)
    return DataType::f32;
  else if constexpr (std::is_same_v<U, Float16>)
    return DataType::f16;
  else if constexpr (std::is_same_v<U, BFloat16>)
    return DataType::bf16;
  else if constexpr (std::is_same_v<U, bool>)
    return DataType::boolean;
  else {
    static_assert(std::is_integral_v<U>, "not an element type of a tensor");
    constexpr bool kSigned = std::is_signed_v<U>;
    if constexpr (sizeof(U) == 1)
      return kSigned ? DataType::i8 : DataType::u8;
    else if constexpr (sizeof(U) == 2)
      return kSigned ? DataType::i16 : DataType::u16;
    else if constexpr (sizeof(U) == 4)
      return kSigned ? DataType::i32 : DataType::u32;
    else
      return kSigned ? DataType::i64 : DataType::u64;
  }
}

template <class T>
concept ElementType = std::is_arithmetic_v<std::remove_cv_t<T>> ||
    std::is_same_v<std::remove_cv_t<T>, Float16> || std::is_same_v<std::remove_cv_t<T>, BFloat16>;

}  // namespace tutti
