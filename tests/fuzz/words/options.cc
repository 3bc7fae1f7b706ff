// The environment: every TUTTI_ variable, as lines of NAME=VALUE.

#include "tests/fuzz/harness.h"
#include "tutti/backends/backend.h"
#include "tutti/base/text.h"
#include "tutti/core/settings/option_table.h"

namespace tutti::fuzz {
namespace {

Environment as_environment(std::string_view input) {
  Environment environment;
  for (const auto& line : split_text(input, '\n'))
    if (const auto equals = line.find('='); equals != line.npos)
      environment.emplace(line.substr(0, equals), line.substr(equals + 1));
  return environment;
}

bool parse_options(std::string_view input) {
  const auto environment = as_environment(input);
  Options options{.rank = 0, .size = 1};
  read_settings(environment, options);
  check_options(options);
  probe_settings(options);
  backend_folders(options);
  // The printed settings can be read again and give the same options.
  Environment again;
  for (const auto& row : describe_options(options))
    if (row.value != row.default_value && !row.variable.starts_with("TUTTI_SECRET"))
      again.emplace(row.variable, row.value);
  Options same{.rank = 0, .size = 1};
  read_settings(again, same);
  const auto rows = describe_options(options), same_rows = describe_options(same);
  for (size_t i = 0; i < rows.size(); ++i)
    require(rows[i].variable.starts_with("TUTTI_SECRET") || rows[i].value == same_rows[i].value,
            "a setting does not come back from how it is printed");
  return environment.lower_bound("TUTTI_") != environment.end();
}

std::vector<std::string> seeds_of_options() {
  std::string all;
  std::vector<std::string> seeds;
  for (const auto& row : describe_options({})) {
    if (row.variable.starts_with("TUTTI_SECRET") || row.default_value.empty()) continue;
    const auto line = row.variable + "=" + row.default_value + "\n";
    all += line;
    seeds.push_back(line);
  }
  seeds.push_back(all);
  seeds.emplace_back(
      "TUTTI_RANK=1\nTUTTI_SIZE=4\nTUTTI_LOCAL_SIZE=2\nTUTTI_STORE=tcp://[::1]:4711\n"
      "TUTTI_NCCL_CONFIG=min_ctas=4\nTUTTI_PROBE=/a/b\nTUTTI_BACKEND_PATH=/a:/b\n"
      "TUTTI_DETERMINISM=rank_order\nTUTTI_FUSION_BYTES=1M\nTUTTI_LOG=debug\nTUTTI_REPLAY=0\n"
      "TUTTI_PEER_TIMEOUT=0.5");
  seeds.emplace_back("TUTTI_STORE=file:///folder\nTUTTI_HOST=a\nTUTTI_INTERFACE=lo");
  return seeds;
}

const Registered registered_options({.name = "options",
                                     .parse = parse_options,
                                     .seeds = seeds_of_options});

}  // namespace
}  // namespace tutti::fuzz
