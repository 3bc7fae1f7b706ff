#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tutti::bench {

/// One line of a plot. Both numbers of each point are above zero.
struct Series {
  std::string label;
  std::vector<std::pair<double, double>> points;  // bytes, microseconds
};

/// Draws time over bytes on logarithmic axes, as an SVG picture on white. Needs at least one point.
std::string draw_svg(const std::string& title, const std::vector<Series>& series);

}  // namespace tutti::bench
