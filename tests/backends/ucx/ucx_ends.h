#pragma once

#include <cstdlib>

#include "tests/backends/conformance/transport_conformance.h"
#include "tutti/backends/ucx/ucx_transport.h"

namespace tutti::test {

/// Ranks over UCX that are threads. `transports` is the value of UCX_TLS, which UCX reads by
/// itself; if it is empty, UCX chooses. `route` is the expected route() of a peer, or empty if it
/// is not checked.
inline TransportMaker ucx_ends(const std::string& name, const std::string& transports,
                               const std::string& route = "") {
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

}  // namespace tutti::test
