#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::bench {

/// Parses "4..256M" in steps of `factor`, "4,64K,1M", or one size. The end of a range is included
/// only if a step reaches it. K, M and G are powers of 1024. Throws Error(invalid_argument) that
/// shows the expected form.
std::vector<int64_t> parse_sizes(std::string_view text, int64_t factor);

/// Returns "4K" for 4096 and "1000" for 1000.
std::string short_size(int64_t bytes);

}  // namespace tutti::bench
