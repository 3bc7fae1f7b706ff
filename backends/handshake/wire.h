#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace tutti {

/// Appends an integer in little-endian order, whatever the machine's own is.
template <std::integral Integer>
void append_integer(std::string& bytes, Integer value) {
  for (size_t i = 0; i < sizeof(Integer); ++i)
    bytes += static_cast<char>(static_cast<uint64_t>(value) >> (8 * i));
}

/// Takes an integer off the front; `bytes` must hold it.
template <std::integral Integer>
Integer take_integer(std::string_view& bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(Integer); ++i)
    value |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  bytes.remove_prefix(sizeof(Integer));
  return static_cast<Integer>(value);
}

}  // namespace tutti
