// TUTTI_STORE as the address of a store.

#include "tests/fuzz/harness.h"
#include "tutti/core/launch/meeting.h"

namespace tutti::fuzz {
namespace {

bool parse_address(std::string_view input) {
  const auto address = parse_store_url(std::string(input));
  require(!address.host.empty(), "a store's address has no host");
  require(address.port > 0 && address.port < 65536, "a store's address has no port");
  if (address.host.front() != '[') {
    const auto same = parse_store_url(store_url(address.host, address.port));
    require(same.host == address.host && same.port == address.port,
            "a store's address does not come back");
  }
  return true;
}

std::vector<std::string> seeds_of_store_url() {
  return {store_url("host-1.cluster", 29500), store_url("::1", 1), store_url("127.0.0.1", 65535)};
}

const Registered registered_store_url({.name = "store_url",
                                       .parse = parse_address,
                                       .seeds = seeds_of_store_url});

}  // namespace
}  // namespace tutti::fuzz
