#include "tools/bench/workload/gradient_set.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <set>

#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti::bench {

std::vector<Gradient> parse_gradient_set(std::string_view csv, const std::string& origin) {
  constexpr int64_t kMostElements = int64_t{1} << 36;
  std::vector<Gradient> gradients;
  std::set<std::string> names;
  const auto lines = split_text(csv, '\n');
  for (size_t i = 1; i < lines.size(); ++i) {
    if (lines[i].empty()) continue;
    const auto fields = split_text(lines[i], ',');
    const auto count =
        fields.size() < 3 ? std::nullopt : parse_integer(fields[2], 1, kMostElements);
    if (!count || fields[1].empty() || !names.insert(fields[1]).second)
      throw Error(ErrorCode::corrupt_data,
                  fmt::format("{}, line {}: \"{}\" is not index,name,numel,... with a name of its "
                              "own and a number of elements",
                              origin, i + 1, lines[i]));
    gradients.push_back({fields[1], *count});
  }
  if (gradients.empty())
    throw Error(
        ErrorCode::corrupt_data,
        fmt::format("{} holds no gradients; expected a heading, then index,name,numel,... in "
                    "each line",
                    origin));
  return gradients;
}

std::vector<Gradient> load_gradient_set(const std::string& name, int64_t elements) {
  std::vector<Gradient> gradients;
  std::string names;
  for (const auto& set : builtin_gradient_sets()) {
    if (set.name == name) gradients = parse_gradient_set(set.csv, name);
    names += fmt::format("{}, ", set.name);
  }
  if (gradients.empty()) {
    std::ifstream file(name);
    if (!file)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("--set {}: neither a built-in set ({}) nor a file that can be read",
                              name, names.substr(0, names.size() - 2)));
    const std::string csv(std::istreambuf_iterator<char>(file), {});
    gradients = parse_gradient_set(csv, name);
  }
  if (elements > 0)
    for (auto& gradient : gradients) gradient.count = elements;
  return gradients;
}

}  // namespace tutti::bench
