#include "tutti/core/launch/slurm_list.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/base/text.h"

namespace tutti {

namespace {

constexpr size_t kMostEntries = 65'536;
// Of DNS; so that a list of the most entries takes little memory, too.
constexpr size_t kLongestHost = 255;

using Names = std::vector<std::string>;

bool is_number(std::string_view text) {
  return !text.empty() && text.size() <= 9 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// "1-3,07" without its brackets.
std::optional<Names> expand_ranges(std::string_view text) {
  Names numbers;
  for (const auto& range : split_text(text, ',')) {
    const auto dash = range.find('-');
    const auto first = range.substr(0, dash);
    const auto last = dash == range.npos ? first : range.substr(dash + 1);
    if (!is_number(first) || !is_number(last)) return {};
    const auto low = *parse_integer(first, 0, 999'999'999);
    const auto high = *parse_integer(last, 0, 999'999'999);
    if (high < low || numbers.size() + static_cast<size_t>(high - low) >= kMostEntries) return {};
    for (auto number = low; number <= high; ++number)
      numbers.push_back(fmt::format("{:0{}}", number, first.size()));
  }
  return numbers;
}

// One name, with any number of brackets in it.
std::optional<Names> expand_name(std::string_view text) {
  Names names{""};
  while (!text.empty()) {
    const auto open = text.find('[');
    const auto plain = text.substr(0, open);
    if (plain.find(']') != plain.npos) return {};
    for (auto& name : names)
      if ((name += plain).size() > kLongestHost) return {};
    if (open == text.npos) break;
    const auto close = text.find(']', open);
    if (close == text.npos) return {};
    const auto numbers = expand_ranges(text.substr(open + 1, close - open - 1));
    if (!numbers || names.size() * numbers->size() > kMostEntries) return {};
    Names longer;
    for (const auto& name : names)
      for (const auto& number : *numbers)
        if (longer.emplace_back(name + number).size() > kLongestHost) return {};
    names = std::move(longer);
    text.remove_prefix(close + 1);
  }
  if (names.front().empty()) return {};
  return names;
}

// At the commas that stand outside brackets.
std::optional<Names> split_names(std::string_view text) {
  Names parts{""};
  bool inside = false;
  for (const char c : text) {
    if (c == '[' || c == ']') {
      if (inside == (c == '[')) return {};
      inside = !inside;
    }
    if (c == ',' && !inside)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  if (inside) return {};
  return parts;
}

}  // namespace

std::optional<std::vector<std::string>> expand_host_list(std::string_view text) {
  const auto parts = split_names(text);
  if (!parts) return {};
  Names hosts;
  for (const auto& part : *parts) {
    const auto names = expand_name(part);
    if (!names || hosts.size() + names->size() > kMostEntries) return {};
    hosts.insert(hosts.end(), names->begin(), names->end());
  }
  return hosts;
}

std::optional<std::vector<int>> expand_task_counts(std::string_view text) {
  std::vector<int> counts;
  for (const auto& part : split_text(text, ',')) {
    std::string_view word = part;
    int64_t times = 1;
    if (const auto open = word.find("(x"); open != word.npos) {
      if (word.back() != ')') return {};
      const auto number = parse_integer(word.substr(open + 2, word.size() - open - 3), 1,
                                        static_cast<int64_t>(kMostEntries));
      if (!number) return {};
      times = *number;
      word = word.substr(0, open);
    }
    const auto count = parse_integer(word, 0, 1'000'000);
    if (!count || counts.size() + static_cast<size_t>(times) > kMostEntries) return {};
    counts.insert(counts.end(), static_cast<size_t>(times), static_cast<int>(*count));
  }
  return counts;
}

}  // namespace tutti
