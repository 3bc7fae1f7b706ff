#include "tutti/backends/nccl_settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti {

namespace {

constexpr int kMostCtas = 64;
constexpr size_t kLongestName = 128;

struct Number {
  const char* name;
  std::optional<int> NcclSettings::*field;
  int low, high;
};
constexpr Number kNumbers[] = {
    {"cga_cluster_size", &NcclSettings::cga_cluster_size, 0, 8},
    {"min_ctas", &NcclSettings::min_ctas, 1, kMostCtas},
    {"max_ctas", &NcclSettings::max_ctas, 1, kMostCtas},
    {"split_share", &NcclSettings::split_share, 0, 1},
    {"traffic_class", &NcclSettings::traffic_class, 0, 1 << 30},
    {"collnet_enable", &NcclSettings::collnet_enable, 0, 1},
    {"cta_policy", &NcclSettings::cta_policy, 0, 2},
    {"nvls_ctas", &NcclSettings::nvls_ctas, 1, kMostCtas},
    {"channels_per_net_peer", &NcclSettings::channels_per_net_peer, 1, kMostCtas},
    {"nvlink_centric_sched", &NcclSettings::nvlink_centric_sched, 0, 1},
};
constexpr const char* kNetName = "net_name";

std::vector<std::string> known_names() {
  std::vector<std::string> names{kNetName};
  for (const auto& number : kNumbers) names.emplace_back(number.name);
  return names;
}

bool is_plain(const std::string& name) {
  return !name.empty() && name.size() <= kLongestName &&
         std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c <= '~'; });
}

class Parser {
 public:
  explicit Parser(const std::string& text) : text_(text) {}

  NcclSettings parse() {
    if (text_.empty()) return {};
    for (const auto& item : split_text(text_, ',')) add(item);
    if (settings_.min_ctas && settings_.max_ctas && *settings_.min_ctas > *settings_.max_ctas)
      refuse(fmt::format("min_ctas={} is more than max_ctas={}", *settings_.min_ctas,
                         *settings_.max_ctas));
    return std::move(settings_);
  }

 private:
  void add(const std::string& item) {
    const auto equals = item.find('=');
    const auto name = item.substr(0, equals);
    const auto value = equals == item.npos ? std::string() : item.substr(equals + 1);
    if (!seen_.insert(name).second) refuse(fmt::format("{} comes twice", name));
    if (name == kNetName) {
      if (!is_plain(value))
        refuse(fmt::format(
            "{} must be the name of one of NCCL's networks, such as Socket or IB, but got \"{}\"",
            kNetName, value));
      settings_.net_name = value;
      return;
    }
    const auto number = std::find_if(std::begin(kNumbers), std::end(kNumbers),
                                     [&](const Number& known) { return name == known.name; });
    if (number == std::end(kNumbers)) {
      const auto names = known_names();
      const auto nearest = nearest_word(name, names);
      refuse(nearest ? fmt::format("\"{}\" is not a setting (did you mean {}?)", name, *nearest)
                     : fmt::format("\"{}\" is not a setting (expected NAME=VALUE of {})", name,
                                   fmt::join(names, ", ")));
    }
    const auto parsed = parse_integer(value, number->low, number->high);
    if (!parsed)
      refuse(fmt::format("{} must be a number from {} to {}, but got \"{}\"", name, number->low,
                         number->high, value));
    settings_.*number->field = static_cast<int>(*parsed);
  }
  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("TUTTI_NCCL_CONFIG={}: {}; see docs/backends.md, nccl", text_, why));
  }

  const std::string& text_;
  NcclSettings settings_;
  std::set<std::string> seen_;
};

}  // namespace

NcclSettings parse_nccl_settings(const std::string& text) { return Parser(text).parse(); }

}  // namespace tutti
