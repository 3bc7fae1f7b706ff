#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace tutti::benchmarks {

/// Splits "a,b,c" at its commas. An empty text gives an empty list.
inline std::vector<std::string> split_words(const std::string& words) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin < words.size();) {
    const auto comma = std::min(words.find(',', begin), words.size());
    parts.push_back(words.substr(begin, comma - begin));
    begin = comma + 1;
  }
  return parts;
}

}  // namespace tutti::benchmarks
