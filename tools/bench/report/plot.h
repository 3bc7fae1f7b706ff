#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tutti::bench {

/// One line of a plot; both numbers of each point are above zero.
struct Series {
  std::string label;
  std::vector<std::pair<double, double>> points;  // bytes, microseconds
};

/// Time over bytes, both logarithmic, as an SVG picture on white. At least one point.
std::string draw_svg(const std::string& title, const std::vector<Series>& series);

}  // namespace tutti::bench
