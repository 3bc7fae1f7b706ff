#include "tools/run/share.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/base/process/cores.h"
#include "tutti/base/text.h"

namespace tutti::run {

std::vector<int> share_of_cores(std::span<const int> cores, int rank, int size) {
  const auto count = cores.size(), place = static_cast<size_t>(rank),
             ranks = static_cast<size_t>(size);
  if (count == 0) return {};
  if (count < ranks) return {cores[place % count]};
  const auto begin = place * count / ranks, end = (place + 1) * count / ranks;
  const auto share = cores.subspan(begin, end - begin);
  return {share.begin(), share.end()};
}

bool give_share(Command& command, bool bind) {
  const auto number = [&](const char* name, int fallback) {
    const auto found = command.variables.find(name);
    const auto value =
        found == command.variables.end() ? std::nullopt : parse_integer(found->second, 0, 1 << 30);
    return static_cast<int>(value.value_or(fallback));
  };
  const int size = std::max(1, number("TUTTI_LOCAL_SIZE", 1));
  const auto share = share_of_cores(usable_cores(), number("TUTTI_LOCAL_RANK", 0), size);
  if (share.empty()) return false;
  if (bind) command.cores = share;
  if (size == 1) return false;  // the rank has all cores, which is OpenMP's default
  return command.variables.emplace("OMP_NUM_THREADS", std::to_string(share.size())).second;
}

std::string threads_text(const Command& command) {
  return fmt::format(
      "OMP_NUM_THREADS={} for each of the {} ranks on this host, its share of the cores; set the "
      "variable to choose another number",
      command.variables.at("OMP_NUM_THREADS"), command.variables.at("TUTTI_LOCAL_SIZE"));
}

}  // namespace tutti::run
