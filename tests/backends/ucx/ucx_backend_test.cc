#include <gmock/gmock.h>

#include <cstdlib>

#include "tests/backends/conformance/backend_conformance.h"
#include "tutti/backends/plugins.h"

namespace tutti::test {
namespace {

// `transports` is the value of UCX_TLS, which UCX reads by itself. If it is empty, UCX chooses.
BackendMaker ucx_maker(const std::string& name, const std::string& transports,
                       const std::string& interface) {
  return {name, [=](int size) {
            if (transports.empty())
              ::unsetenv("UCX_TLS");
            else
              ::setenv("UCX_TLS", transports.c_str(), 1);
            return make_backends(find_backend("ucx"), size, [=](Context& context) {
              context.network_interface = interface;
              context.executor.segment_bytes = kTestSegmentBytes;
            });
          }};
}

// Ranks of this process, with host names as if they ran on several hosts: host_of(rank).
BackendMaker shm_ucx_maker(const std::string& name, int (*host_of)(int rank)) {
  return {name, [host_of](int size) {
            ::unsetenv("UCX_TLS");
            const auto plugins = load_backends("shm+ucx", {}, {});
            return make_backends(find_backend("hierarchical"), size, [&](Context& context) {
              context.name = "shm+ucx";
              context.plugins = plugins;
              for (int rank = 0; rank < context.size; ++rank)
                context.places[static_cast<size_t>(rank)].host = std::to_string(host_of(rank));
              context.executor.segment_bytes = kTestSegmentBytes;
            });
          }};
}

const auto name_of = [](const auto& info) { return info.param.name; };

INSTANTIATE_TEST_SUITE_P(Ucx, BackendConformance,
                         testing::Values(ucx_maker("Default", "", ""),
                                         ucx_maker("Tcp", "tcp", "127.0.0.1")),
                         name_of);
INSTANTIATE_TEST_SUITE_P(
    ShmUcx, BackendConformance,
    testing::Values(shm_ucx_maker("TwoHostsInTurn", [](int rank) { return rank % 2; }),
                    shm_ucx_maker("TwoRanksAHost", [](int rank) { return rank / 2; })),
    name_of);

// If one rank lacks the interface, all ranks get its error immediately.
TEST(Ucx, AnInterfaceThatOneRankLacksIsOneErrorOnAll) {
  const auto heard =
      connect_refusals(find_backend("ucx"), 3, ErrorCode::unavailable, [](Context& context) {
        if (context.rank == 1) context.network_interface = "eth99";
      });
  EXPECT_EQ(heard[0], heard[1]);
  EXPECT_EQ(heard[2], heard[1]);
  EXPECT_THAT(heard[1],
              testing::AllOf(testing::StartsWith("rank 1: TUTTI_INTERFACE=eth99 names no interface "
                                                 "that is up and no address of this host (nor an "
                                                 "RDMA device such as mlx5_0:1)"),
                             testing::HasSubstr("there are lo 127.0.0.1")));
}

}  // namespace
}  // namespace tutti::test
