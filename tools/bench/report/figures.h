#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace tutti::bench {

/// Returns the middle value, or the mean of the two middle ones. `values` must not be empty.
double median(std::vector<double> values);

/// Returns the smallest value that at least `percent` % of all values do not exceed (nearest rank).
/// `ascending` is sorted and not empty.
double percentile(const std::vector<double>& ascending, double percent);

/// Returns how many iterations fill `wanted_seconds` if `iterations` took `seconds`; 1 to
/// 1,000,000.
int64_t iterations_for(double wanted_seconds, int64_t iterations, double seconds);

/// Returns the bytes that each rank's link must carry per byte of the operation's size. Bus
/// bandwidth is algorithm bandwidth times this factor, as nccl-tests define it. The size is that of
/// the whole buffer.
double bus_factor(std::string_view collective, int ranks);

}  // namespace tutti::bench
