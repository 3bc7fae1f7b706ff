#include <gmock/gmock.h>

#include "tests/backends/backend_conformance.h"

namespace tutti::test {
namespace {

BackendMaker gloo_maker(const std::string& name, const std::string& interface,
                        const std::string& algorithms) {
  return {name, [=](int size) {
            return make_backends(find_backend("gloo"), size, [=](Context& context) {
              context.network_interface = interface;
              context.algorithms = algorithms;
              context.executor.segment_bytes = kTestSegmentBytes;
            });
          }};
}

const auto name_of = [](const auto& info) { return info.param.name; };

INSTANTIATE_TEST_SUITE_P(Gloo, BackendConformance,
                         testing::Values(gloo_maker("Default", "", ""),
                                         gloo_maker("Ring", "127.0.0.1", "allreduce:0-inf=ring"),
                                         gloo_maker("HalvingDoubling", "lo",
                                                    "allreduce:0-inf=halving_doubling")),
                         name_of);

}  // namespace
}  // namespace tutti::test
