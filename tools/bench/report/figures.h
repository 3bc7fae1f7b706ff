#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace tutti::bench {

/// The middle value, or the mean of the two middle ones. At least one value.
double median(std::vector<double> values);

/// The smallest value that at least `percent` of all values do not exceed (nearest rank).
/// `ascending` holds at least one value.
double percentile(const std::vector<double>& ascending, double percent);

/// How many iterations fill `wanted_seconds` if `iterations` took `seconds`; 1 to 1,000,000.
int64_t iterations_for(double wanted_seconds, int64_t iterations, double seconds);

/// What a link of each rank must carry for each byte of the operation's size, as nccl-tests define
/// it: bus bandwidth is algorithm bandwidth times this. Sizes are those of the whole buffer.
double bus_factor(std::string_view collective, int ranks);

}  // namespace tutti::bench
