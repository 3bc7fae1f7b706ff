// Names of backends from TUTTI_BACKEND and TUTTI_ALGORITHMS, which become names of files.

#include "tests/fuzz/harness.h"
#include "tutti/backends/plugins.h"
#include "tutti/collectives/chooser.h"

namespace tutti::fuzz {
namespace {

bool parse_plugin_names(std::string_view input) {
  const auto plugins = load_backends(input, Chooser(), {});
  require(plugins.size() >= builtin_backends().size(), "a built-in backend is gone");
  if (const auto levels = levels_of(input))
    require(levels->inner.size() + levels->cross.size() + 1 == input.size(),
            "two levels are not the whole name");
  return input != "auto";
}

std::vector<std::string> seeds_of_plugin_names() {
  std::vector<std::string> seeds;
  for (const auto* plugin : builtin_backends()) {
    seeds.emplace_back(plugin->name);
    seeds.push_back(std::string(plugin->name) + "+tcp");
  }
  return seeds;
}

const Registered registered_plugin_names({.name = "plugin_names",
                                          .parse = parse_plugin_names,
                                          .seeds = seeds_of_plugin_names,
                                          .longest = 256});

}  // namespace
}  // namespace tutti::fuzz
