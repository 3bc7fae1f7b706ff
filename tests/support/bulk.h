#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

// Functions that fill and compare megabytes of test data. Under a sanitizer these loops would take
// most of a test's time, so they are built without one. They fill only memory that no other thread
// uses. Received data is compared as a whole by memcmp, which every sanitizer checks.

namespace tutti::test {

/// Fills `bytes` with a pattern that depends on the seed.
void fill_pattern(std::byte* bytes, size_t count, uint64_t seed);

/// Fills each element of `size` bytes with one of the four elements at `four`.
void fill_from_four(std::byte* elements, size_t count, size_t size, const std::byte* four,
                    uint64_t seed);

/// Fills `count` elements of `size` bytes with the elements of `cycle` over and over, beginning
/// with its element `first`.
void fill_cycle(void* elements, int64_t count, size_t size, std::span<const std::byte> cycle,
                int64_t first = 0);
template <class T>
requires std::is_trivially_copyable_v<T>
void fill_cycle(std::span<T> elements, const std::vector<T>& cycle, int64_t first = 0) {
  fill_cycle(elements.data(), static_cast<int64_t>(elements.size()), sizeof(T),
             std::as_bytes(std::span(cycle)), first);
}

/// Fills `terms` with values of very different size, so that each order of addition gives other
/// bits.
void fill_terms(std::span<float> terms, uint64_t seed);

inline std::vector<std::byte> pattern(size_t bytes, uint64_t seed) {
  std::vector<std::byte> data(bytes);
  fill_pattern(data.data(), bytes, seed);
  return data;
}

/// Returns success if both hold the same bytes; otherwise names the first difference.
inline testing::AssertionResult same(std::span<const std::byte> left,
                                     std::span<const std::byte> right) {
  if (left.size() != right.size())
    return testing::AssertionFailure() << left.size() << " bytes and " << right.size();
  if (left.empty() || std::memcmp(left.data(), right.data(), left.size()) == 0)
    return testing::AssertionSuccess();
  const auto at = std::mismatch(left.begin(), left.end(), right.begin()).first - left.begin();
  return testing::AssertionFailure()
         << "byte " << at << " of " << left.size() << " is the first that differs";
}
template <class T>
requires std::is_trivially_copyable_v<T> testing::AssertionResult same(
    const std::vector<T>& left, const std::vector<T>& right) {
  return same(std::as_bytes(std::span(left)), std::as_bytes(std::span(right)));
}

}  // namespace tutti::test
