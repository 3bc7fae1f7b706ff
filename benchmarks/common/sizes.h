#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/common/words.h"

namespace tutti::benchmarks {

/// Parses a number of bytes, such as "4", "64K", "1M" or "1G".
inline int64_t parse_bytes(const std::string& word) {
  size_t end = 0;
  int64_t value = 0;
  try {
    value = std::stoll(word, &end);
  } catch (const std::exception&) {
    throw std::invalid_argument("not a number of bytes: " + word);
  }
  const std::string unit = word.substr(end);
  const int shift = unit.empty() ? 0 : unit == "K" ? 10 : unit == "M" ? 20 : unit == "G" ? 30 : -1;
  if (shift < 0 || value <= 0) throw std::invalid_argument("not a number of bytes: " + word);
  return value << shift;
}

/// Parses "4..64M" (in steps of `factor`), "4,64K,1M" or one size.
inline std::vector<int64_t> parse_sizes(const std::string& words, int64_t factor) {
  std::vector<int64_t> sizes;
  if (const auto dots = words.find(".."); dots != std::string::npos) {
    const auto last = parse_bytes(words.substr(dots + 2));
    if (factor < 2) throw std::invalid_argument("--factor must be at least 2");
    for (auto size = parse_bytes(words.substr(0, dots)); size <= last; size *= factor)
      sizes.push_back(size);
  } else {
    for (const auto& word : split_words(words)) sizes.push_back(parse_bytes(word));
  }
  if (sizes.empty()) throw std::invalid_argument("which --bytes?");
  for (const auto size : sizes)
    if (size % 4 != 0) throw std::invalid_argument("sizes are whole f32 elements: " + words);
  return sizes;
}

}  // namespace tutti::benchmarks
