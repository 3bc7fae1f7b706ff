#include "tools/bench/report/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "tools/bench/workload/sizes.h"
#include "tutti/base/check.h"

namespace tutti::bench {

namespace {

constexpr double kWidth = 760, kHeight = 460;
constexpr double kLeft = 80, kTop = 48, kRight = 740, kBottom = 400;

// The colours are dark enough for white paper, and most colour-blind readers can tell them apart.
constexpr std::array<const char*, 6> kColours = {"#0072b2", "#d55e00", "#007a5a",
                                                 "#aa3377", "#7a5c00", "#444444"};

std::string escaped(const std::string& text) {
  std::string result;
  for (const char letter : text) {
    switch (letter) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += letter;
    }
  }
  return result;
}

std::string time_label(double micros) {
  if (micros >= 1e6) return fmt::format("{:g} s", micros / 1e6);
  if (micros >= 1e3) return fmt::format("{:g} ms", micros / 1e3);
  if (micros < 1) return fmt::format("{:g} ns", micros * 1e3);
  return fmt::format("{:g} µs", micros);
}

std::string text_at(double x, double y, const char* anchor, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                     escaped(text));
}

std::string line(double x1, double y1, double x2, double y2, const char* colour) {
  return fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", x1, y1, x2,
      y2, colour);
}

// A logarithmic axis. Its range is in exponents of `base`, widened to whole exponents.
struct Axis {
  Axis(double low, double high, double logarithm_base, double from_pixel, double to_pixel)
      : base(logarithm_base),
        first(std::floor(std::log(low) / std::log(base) + 1e-9)),
        last(std::max(first + 1, std::ceil(std::log(high) / std::log(base) - 1e-9))),
        from(from_pixel),
        to(to_pixel) {}
  double operator()(double value) const {
    return from + (std::log(value) / std::log(base) - first) / (last - first) * (to - from);
  }
  double base, first, last, from, to;
};

}  // namespace

std::string draw_svg(const std::string& title, const std::vector<Series>& series) {
  double least_x = INFINITY, most_x = 0, least_y = INFINITY, most_y = 0;
  for (const auto& [label, points] : series) {
    for (const auto& [x, y] : points) {
      TUTTI_CHECK(x > 0 && y > 0);
      least_x = std::min(least_x, x), most_x = std::max(most_x, x);
      least_y = std::min(least_y, y), most_y = std::max(most_y, y);
    }
  }
  TUTTI_CHECK(most_x > 0);
  const Axis across(least_x, most_x, 2, kLeft, kRight), up(least_y, most_y, 10, kBottom, kTop);

  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#222222\">\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n",
      kWidth, kHeight);
  svg += fmt::format("<title>{}</title>\n", escaped(title));
  svg += text_at(kLeft, 28, "start", title);

  // There are at most a dozen labels, because the range in powers of two may be long.
  const double every = std::max(1.0, std::ceil((across.last - across.first) / 12));
  for (double power = across.first; power <= across.last; power += every) {
    const double bytes = std::exp2(power), x = across(bytes);
    svg += line(x, kTop, x, kBottom, "#e2e2e2");
    svg += text_at(x, kBottom + 18, "middle", short_size(std::llround(bytes)));
  }
  for (double power = up.first; power <= up.last; ++power) {
    const double micros = std::pow(10, power), y = up(micros);
    svg += line(kLeft, y, kRight, y, "#e2e2e2");
    svg += text_at(kLeft - 8, y + 4, "end", time_label(micros));
  }
  svg += line(kLeft, kBottom, kRight, kBottom, "#222222");
  svg += line(kLeft, kTop, kLeft, kBottom, "#222222");
  svg += text_at((kLeft + kRight) / 2, kHeight - 16, "middle", "bytes");

  for (size_t i = 0; i < series.size(); ++i) {
    const auto* colour = kColours[i % kColours.size()];
    std::string path;
    for (const auto& [x, y] : series[i].points)
      path += fmt::format("{:.1f},{:.1f} ", across(x), up(y));
    svg += fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"2\" points=\"{}\"/>\n",
                       colour, path);
    for (const auto& [x, y] : series[i].points)
      svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>\n", across(x),
                         up(y), colour);
    const double y = kTop + 16 + 18 * static_cast<double>(i);
    svg += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"18\" height=\"4\" fill=\"{}\"/>\n",
                       kLeft + 16, y - 6, colour);
    svg += text_at(kLeft + 42, y, "start", series[i].label);
  }
  return svg + "</svg>\n";
}

}  // namespace tutti::bench
