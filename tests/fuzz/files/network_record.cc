// The file with the measured properties of networks.

#include "tutti/backends/network/network_record.h"

#include "tests/fuzz/files/memory_file.h"
#include "tests/fuzz/harness.h"

namespace tutti::fuzz {
namespace {

const std::string kNetworkKey = "n1+n2";

bool parse_network_record(std::string_view input) {
  const MemoryFile file(input);
  const auto figures = NetworkRecord(file.path()).find(kNetworkKey);
  if (!figures) return false;
  require(figures->between.latency_micros > 0 && figures->between.bytes_per_micro > 0,
          "a network without a figure");
  require(decode_figures(encode(*figures)).has_value(), "figures do not come back");
  return true;
}

std::vector<std::string> seeds_of_network_record() {
  const NetworkFigures one{{25.1, 1180}, {}}, two{{25.1, 1180}, LinkFigures{3.2, 4100}};
  return {kNetworkKey + " " + encode(one) + "\n",
          "other " + encode(one) + "\n" + kNetworkKey + " " + encode(two) + "\n"};
}

const Registered registered_network_record({.name = "network_record",
                                            .parse = parse_network_record,
                                            .seeds = seeds_of_network_record});

}  // namespace
}  // namespace tutti::fuzz
