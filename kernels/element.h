#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tutti/base/check.h"
#include "tutti/tensor/dtype.h"

namespace tutti {

/// A bool as storage. Memory of other libraries may hold bytes besides 0 and 1, which a C++ bool
/// must not.
struct Boolean {
  uint8_t byte;
};

/// Calls f(std::type_identity<T>()) with the C++ type that stores one element of `dtype`.
template <class Function>
decltype(auto) visit_dtype(DataType dtype, Function&& f) {
  switch (dtype) {
    case DataType::f64:
      return f(std::type_identity<double>());
    case DataType::f32:
      return f(std::type_identity<float>());
    case DataType::f16:
      return f(std::type_identity<Float16>());
    case DataType::bf16:
      return f(std::type_identity<BFloat16>());
    case DataType::i8:
      return f(std::type_identity<int8_t>());
    case DataType::i16:
      return f(std::type_identity<int16_t>());
    case DataType::i32:
      return f(std::type_identity<int32_t>());
    case DataType::i64:
      return f(std::type_identity<int64_t>());
    case DataType::u8:
      return f(std::type_identity<uint8_t>());
    case DataType::u16:
      return f(std::type_identity<uint16_t>());
    case DataType::u32:
      return f(std::type_identity<uint32_t>());
    case DataType::u64:
      return f(std::type_identity<uint64_t>());
    case DataType::raw:  // moved as bytes; it has no arithmetic
      return f(std::type_identity<uint8_t>());
    case DataType::boolean:
      break;
  }
  TUTTI_CHECK(dtype == DataType::boolean);
  return f(std::type_identity<Boolean>());
}

/// Load and store elements of buffers that need not be aligned.
template <class T>
T load_element(const std::byte* data, int64_t i) {
  T value;
  std::memcpy(&value, data + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}
template <class T>
void store_element(std::byte* data, int64_t i, T value) {
  std::memcpy(data + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

}  // namespace tutti
