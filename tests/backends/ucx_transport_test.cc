#include "tutti/backends/ucx/ucx_transport.h"

#include <cstdlib>

#include "tests/backends/transport_conformance.h"

namespace tutti::test {
namespace {

// `transports` as in UCX_TLS, which UCX reads by itself; empty: UCX chooses.
TransportMaker maker(const std::string& name, const std::string& transports,
                     const std::string& route) {
  return {name, route, [transports](int size) {
            if (transports.empty())
              ::unsetenv("UCX_TLS");
            else
              ::setenv("UCX_TLS", transports.c_str(), 1);
            const auto store = make_memory_store();
            Transports ends(static_cast<size_t>(size));
            run_ranks(size, [&](int rank) {
              ends[static_cast<size_t>(rank)] =
                  std::make_unique<UcxTransport>(thread_context(rank, size, store));
            });
            return ends;
          }};
}

INSTANTIATE_TEST_SUITE_P(Ucx, TransportConformance,
                         testing::Values(maker("Default", "", "sysv, posix"),
                                         maker("Posix", "posix", "posix"),
                                         maker("Sysv", "sysv", "sysv"), maker("Tcp", "tcp", "tcp")),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tutti::test
