#include "tools/bench/workload/sizes.h"

#include <fmt/format.h>

#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti::bench {

namespace {

constexpr int64_t kMostBytes = int64_t{64} << 30;

int64_t parse_one(std::string_view text, std::string_view all) {
  const auto size = parse_size(text);
  if (!size || *size < 1 || *size > kMostBytes)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format(
            "--bytes {}: {} (expected FROM..TO, a list like 4,64K,1M, or one size; from 1 to {})",
            all, text.empty() ? "a size is missing" : fmt::format("\"{}\" is not a size", text),
            short_size(kMostBytes)));
  return *size;
}

}  // namespace

std::vector<int64_t> parse_sizes(std::string_view text, int64_t factor) {
  std::vector<int64_t> sizes;
  const auto dots = text.find("..");
  if (dots == text.npos) {
    for (const auto& word : split_text(text, ',')) sizes.push_back(parse_one(word, text));
    return sizes;
  }
  const int64_t from = parse_one(text.substr(0, dots), text);
  const int64_t to = parse_one(text.substr(dots + 2), text);
  if (from > to)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("--bytes {}: the range ends before it begins", text));
  for (int64_t size = from; size <= to; size *= factor) sizes.push_back(size);
  return sizes;
}

std::string short_size(int64_t bytes) {
  for (const auto& [shift, unit] : {std::pair{30, 'G'}, {20, 'M'}, {10, 'K'}})
    if (bytes >> shift > 0 && bytes % (int64_t{1} << shift) == 0)
      return fmt::format("{}{}", bytes >> shift, unit);
  return std::to_string(bytes);
}

}  // namespace tutti::bench
