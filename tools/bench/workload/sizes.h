#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::bench {

/// "4..256M" in steps of `factor` (the end counts only if a step meets it), "4,64K,1M", or one
/// size; K, M and G are powers of 1024. Throws Error(invalid_argument) that says what is wanted.
std::vector<int64_t> parse_sizes(std::string_view text, int64_t factor);

/// "4K" for 4096, "1000" for 1000.
std::string short_size(int64_t bytes);

}  // namespace tutti::bench
