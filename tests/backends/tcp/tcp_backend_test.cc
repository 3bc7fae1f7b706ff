#include "tests/backends/conformance/backend_conformance.h"

namespace tutti::test {
namespace {

BackendMaker tcp_maker(const std::string& name, const std::string& interface) {
  return {name, [interface](int size) {
            return make_backends(find_backend("tcp"), size, [interface](Context& context) {
              context.network_interface = interface;
              context.executor.segment_bytes = kTestSegmentBytes;
            });
          }};
}

// Ranks of this process, with host names as if they ran on several hosts: host_of(rank).
BackendMaker hierarchical_maker(const std::string& name, int (*host_of)(int rank)) {
  return {name, [host_of](int size) {
            return make_backends(find_backend("hierarchical"), size, [host_of](Context& context) {
              for (int rank = 0; rank < context.size; ++rank)
                context.places[static_cast<size_t>(rank)].host = std::to_string(host_of(rank));
              context.network_interface = "127.0.0.1";  // all hosts are this machine
              context.executor.segment_bytes = kTestSegmentBytes;
            });
          }};
}

const auto name_of = [](const auto& info) { return info.param.name; };

INSTANTIATE_TEST_SUITE_P(Tcp, BackendConformance,
                         testing::Values(tcp_maker("IPv4", "127.0.0.1"), tcp_maker("IPv6", "::1")),
                         name_of);
INSTANTIATE_TEST_SUITE_P(
    ShmTcp, BackendConformance,
    testing::Values(hierarchical_maker("OneHost", [](int) { return 0; }),
                    hierarchical_maker("TwoHostsInTurn", [](int rank) { return rank % 2; }),
                    hierarchical_maker("TwoRanksAHost", [](int rank) { return rank / 2; })),
    name_of);

}  // namespace
}  // namespace tutti::test
