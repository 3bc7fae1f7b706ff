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
  /// Bytes that only the program interprets (fp8, complex numbers, structs): operations that only
  /// move data accept them, reductions do not.
  raw = 13,
};
/// Number of types.
inline constexpr int kDataTypeCount = 14;

/// 16-bit floats as storage; arithmetic happens in f32 (kernels/).
struct Float16 {
  uint16_t bits;                                    // sign, 5 exponent bits, 10 fraction bits
  bool operator==(const Float16&) const = default;  // compares bits, so NaNs may be equal
};
/// A 16-bit float as storage, with the exponent of f32 and a shorter fraction.
struct BFloat16 {
  uint16_t bits;                                     // sign, 8 exponent bits, 7 fraction bits
  bool operator==(const BFloat16&) const = default;  // compares bits, so NaNs may be equal
};

/// Bytes per element, by DataType. The table is outside of size_of(), which would otherwise copy it
/// to the stack.
inline constexpr int64_t kDataTypeSizes[kDataTypeCount] = {8, 4, 2, 2, 1, 2, 4,
                                                           8, 1, 2, 4, 8, 1, 1};
/// Returns the bytes of one element.
constexpr int64_t size_of(DataType dtype) noexcept {
  return kDataTypeSizes[static_cast<int>(dtype)];
}
/// Returns for example "f32".
constexpr std::string_view to_string(DataType dtype) noexcept {
  constexpr std::string_view kNames[kDataTypeCount] = {"f64", "f32", "f16",  "bf16", "i8",
                                                       "i16", "i32", "i64",  "u8",   "u16",
                                                       "u32", "u64", "bool", "raw"};
  return kNames[static_cast<int>(dtype)];
}
/// Returns whether the type is a float, of any size.
constexpr bool is_float(DataType dtype) noexcept {
  return static_cast<int>(dtype) <= static_cast<int>(DataType::bf16);
}
/// Returns whether the type is a signed or unsigned integer; bool and raw are not.
constexpr bool is_integer(DataType dtype) noexcept {
  return !is_float(dtype) && dtype != DataType::boolean && dtype != DataType::raw;
}
/// Returns whether this is one of the types. A number from a message or a file may be none of them.
constexpr bool is_valid(DataType dtype) noexcept {
  return static_cast<int>(dtype) < kDataTypeCount;
}

/// Returns the DataType of a C++ type. It is defined only for the element types of tensors.
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
