// Slurm's compressed lists: hosts if the first byte is 0, otherwise task counts.

#include "tutti/core/launch/slurm_list.h"

#include "tests/fuzz/harness.h"

namespace tutti::fuzz {
namespace {

constexpr size_t kMostListed = 65'536;

bool parse_slurm_list(std::string_view input) {
  if (take_number_of(input, 1) == 0) {
    const auto hosts = read_host_list(input);
    if (!hosts) return false;
    require(hosts->count > 0 && hosts->count <= kMostListed, "a host list beyond its bound");
    require(!hosts->first.empty() && hosts->first.find('[') == std::string::npos,
            "a host's name was not expanded");
    return true;
  }
  const auto counts = expand_task_counts(input);
  if (!counts) return false;
  require(!counts->empty() && counts->size() <= kMostListed, "a list of tasks beyond its bound");
  return true;
}

std::vector<std::string> seeds_of_slurm_list() {
  const std::string hosts(1, '\0'), counts(1, '\1');
  return {hosts + "n[1-3,07],login", hosts + "rack[0-1]node[08-10].cluster", hosts + "a,b,c",
          counts + "4,1(x2)", counts + "2(x8),0"};
}

const Registered registered_slurm_list({.name = "slurm_list",
                                        .parse = parse_slurm_list,
                                        .seeds = seeds_of_slurm_list});

}  // namespace
}  // namespace tutti::fuzz
