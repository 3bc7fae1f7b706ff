// tutti-run --hosts.

#include "tools/run/host_list.h"

#include <numeric>

#include "tests/fuzz/harness.h"

namespace tutti::fuzz {
namespace {

bool parse_host_list(std::string_view input) {
  const auto hosts = run::parse_hosts(input);
  const auto seats = run::place_ranks(hosts, 0);
  const auto slots = std::accumulate(
      hosts.begin(), hosts.end(), size_t{0},
      [](size_t sum, const run::Host& host) { return sum + static_cast<size_t>(host.slots); });
  require(seats.size() == slots, "the hosts have other seats than slots");
  for (const auto& host : hosts)
    require(!host.name.empty() && host.name.front() != '-' &&
                host.name.find_first_of(";$`|&'\"\n ") == std::string::npos,
            "a host's name would be more than a name to ssh or a shell");
  return true;
}

std::vector<std::string> seeds_of_host_list() {
  return {"a:2,b,[fd00::1]:4", "host-1.cluster:65,user@host", "10.0.0.1:1"};
}

// The parser accepts at most 65,536 seats.
const Registered registered_host_list({.name = "host_list",
                                       .parse = parse_host_list,
                                       .seeds = seeds_of_host_list,
                                       .most_bytes = 8u << 20});

}  // namespace
}  // namespace tutti::fuzz
