#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>

#include "tutti/backends/store/tcp_store_protocol.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"

// The checks of Stores that keep their keys themselves. They share these functions, so all of them
// report the same errors.

namespace tutti {

inline void check_store_entry(std::string_view key, std::string_view value = {}) {
  if (key.empty() || key.size() > kMaxStoreKeyBytes)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a store's key has 1 to {} bytes, \"{:.40}...\" has {}",
                            kMaxStoreKeyBytes, key, key.size()));
  if (value.size() > kMaxStoreValueBytes)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a store's value has at most {} bytes, that of \"{:.40}\" has {}",
                            kMaxStoreValueBytes, key, value.size()));
}

[[noreturn]] inline void throw_store_timeout(std::string_view key) {
  throw Error(ErrorCode::timeout,
              fmt::format("no rank set the store's key \"{}\" before the deadline", key));
}

[[noreturn]] inline void throw_no_counter(std::string_view key, std::string_view value) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("the store's key \"{}\" holds \"{:.40}\", which no number can be added "
                          "to",
                          key, value));
}

/// Returns the value of a counter, which is 0 if it does not exist.
inline int64_t store_counter(std::string_view key, std::string_view value) {
  if (value.empty()) return 0;
  constexpr auto kLow = std::numeric_limits<int64_t>::min();
  constexpr auto kHigh = std::numeric_limits<int64_t>::max();
  const auto number = parse_integer(value, kLow, kHigh);
  if (!number) throw_no_counter(key, value);
  return *number;
}

/// Returns value + amount. Throws Error(invalid_argument) if the sum overflows.
inline int64_t counter_sum(std::string_view key, int64_t value, int64_t amount) {
  int64_t sum = 0;
  if (__builtin_add_overflow(value, amount, &sum)) throw_no_counter(key, std::to_string(value));
  return sum;
}

/// Erases all keys that begin with the prefix. They follow each other in the map.
inline void erase_keys_with(const std::string& prefix, std::map<std::string, std::string>& values) {
  auto end = values.lower_bound(prefix);
  while (end != values.end() && end->first.starts_with(prefix)) ++end;
  values.erase(values.lower_bound(prefix), end);
}

}  // namespace tutti
