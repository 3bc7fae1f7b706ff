#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace tutti {

/// The types of the numbers in messages between ranks.
template <class T>
concept WireNumber = std::is_arithmetic_v<T> || std::is_enum_v<T>;

/// Returns a number's bytes in little-endian order, whatever the machine's byte order.
template <WireNumber Number>
std::array<std::byte, sizeof(Number)> to_little_endian(Number number) {
  auto bytes = std::bit_cast<std::array<std::byte, sizeof(Number)>>(number);
  if constexpr (std::endian::native == std::endian::big)
    for (size_t i = 0; i < bytes.size() / 2; ++i) std::swap(bytes[i], bytes[bytes.size() - 1 - i]);
  return bytes;
}

/// Returns the number whose bytes in little-endian order begin at `at`.
template <WireNumber Number>
Number from_little_endian(const std::byte* at) {
  std::array<std::byte, sizeof(Number)> bytes;
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[std::endian::native == std::endian::big ? bytes.size() - 1 - i : i] = at[i];
  return std::bit_cast<Number>(bytes);
}

/// Writes a number at `at`; returns the address after it.
template <WireNumber Number>
std::byte* put_number(std::byte* at, Number number) {
  for (const auto byte : to_little_endian(number)) *at++ = byte;
  return at;
}

/// Reads a number at `at`; returns the address after it.
template <WireNumber Number>
const std::byte* get_number(const std::byte* at, Number& number) {
  number = from_little_endian<Number>(at);
  return at + sizeof number;
}

/// Appends a number to a message that is stored as text.
template <WireNumber Number>
void append_number(std::string& bytes, Number number) {
  for (const auto byte : to_little_endian(number)) bytes += static_cast<char>(byte);
}

/// Removes a number from the front and returns it; `bytes` must hold it.
template <WireNumber Number>
Number take_number(std::string_view& bytes) {
  const auto number = from_little_endian<Number>(reinterpret_cast<const std::byte*>(bytes.data()));
  bytes.remove_prefix(sizeof number);
  return number;
}

}  // namespace tutti
