#include <cstdlib>

#include "tests/backends/backend_conformance.h"

namespace tutti::test {
namespace {

// `transports` as in UCX_TLS, which UCX reads by itself; empty: UCX chooses.
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

const auto name_of = [](const auto& info) { return info.param.name; };

INSTANTIATE_TEST_SUITE_P(Ucx, BackendConformance,
                         testing::Values(ucx_maker("Default", "", ""),
                                         ucx_maker("Tcp", "tcp", "127.0.0.1")),
                         name_of);

}  // namespace
}  // namespace tutti::test
