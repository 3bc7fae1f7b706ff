#include "tools/bench/report/figures.h"

#include <algorithm>
#include <cmath>

#include "tutti/base/check.h"
#include "tutti/collectives/collective.h"

namespace tutti::bench {

double median(std::vector<double> values) {
  TUTTI_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double percentile(const std::vector<double>& ascending, double percent) {
  TUTTI_CHECK(!ascending.empty());
  const auto count = static_cast<double>(ascending.size());
  const auto rank = std::clamp(std::ceil(percent / 100 * count), 1.0, count);
  return ascending[static_cast<size_t>(rank) - 1];
}

int64_t iterations_for(double wanted_seconds, int64_t iterations, double seconds) {
  constexpr double kMost = 1e6;
  if (seconds <= 0) return static_cast<int64_t>(kMost);
  const double wanted = wanted_seconds * static_cast<double>(iterations) / seconds;
  return static_cast<int64_t>(std::clamp(std::round(wanted), 1.0, kMost));
}

double bus_factor(std::string_view collective, int ranks) {
  const double n = ranks;
  if (collective == "allreduce") return 2 * (n - 1) / n;
  // A rank does not send its own part to itself.
  for (const auto& row : kKindTraits)
    if (row.name == collective && has_rows(row.kind)) return (n - 1) / n;
  return 1;
}

}  // namespace tutti::bench
