#include "tutti/core/launch/slurm_list.h"

#include <algorithm>

#include "tutti/base/text.h"

namespace tutti {

namespace {

constexpr size_t kMostEntries = 65'536;
// DNS limits host names to this length.
constexpr size_t kLongestHost = 255;

bool is_number(std::string_view text) {
  return !text.empty() && text.size() <= 9 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

struct Numbers {
  std::string first;
  size_t count = 0, longest = 0;  // number of values, and number of digits of the longest
};

// Parses the text between two brackets, such as "1-3,07".
std::optional<Numbers> read_ranges(std::string_view text) {
  Numbers numbers;
  for (const auto& range : split_text(text, ',')) {
    const auto dash = range.find('-');
    const auto first = range.substr(0, dash);
    const auto last = dash == range.npos ? first : range.substr(dash + 1);
    if (!is_number(first) || !is_number(last)) return {};
    const auto low = *parse_integer(first, 0, 999'999'999);
    const auto high = *parse_integer(last, 0, 999'999'999);
    if (high < low || numbers.count + static_cast<size_t>(high - low) >= kMostEntries) return {};
    if (numbers.count == 0) numbers.first = first;
    numbers.count += static_cast<size_t>(high - low) + 1;
    numbers.longest = std::max({numbers.longest, first.size(), std::to_string(high).size()});
  }
  return numbers;
}

// Parses one name with any number of brackets in it. Returns the number of hosts that it names, and
// the first host.
std::optional<HostList> read_name(std::string_view text) {
  HostList hosts{"", 1};
  size_t longest = 0;
  while (!text.empty()) {
    const auto open = text.find('[');
    const auto plain = text.substr(0, open);
    if (plain.find(']') != plain.npos) return {};
    hosts.first += plain;
    longest += plain.size();
    if (open == text.npos) break;
    const auto close = text.find(']', open);
    if (close == text.npos) return {};
    const auto numbers = read_ranges(text.substr(open + 1, close - open - 1));
    if (!numbers || hosts.count * numbers->count > kMostEntries) return {};
    hosts.first += numbers->first;
    hosts.count *= numbers->count;
    longest += numbers->longest;
    text.remove_prefix(close + 1);
  }
  if (hosts.first.empty() || longest > kLongestHost) return {};
  return hosts;
}

// Splits `text` at the commas that are outside brackets.
std::optional<std::vector<std::string>> split_names(std::string_view text) {
  std::vector<std::string> parts{""};
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

std::optional<HostList> read_host_list(std::string_view text) {
  const auto parts = split_names(text);
  if (!parts) return {};
  HostList hosts;
  for (const auto& part : *parts) {
    const auto name = read_name(part);
    if (!name || hosts.count + name->count > kMostEntries) return {};
    if (hosts.count == 0) hosts.first = name->first;
    hosts.count += name->count;
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
