#include "tests/backends/conformance/transport_conformance.h"

namespace tutti::test {
namespace {

TransportMaker maker(const std::string& name, const std::string& interface, int sockets) {
  return {name, "tcp", [=](int size) {
            const auto store = make_memory_store();
            Transports transports(static_cast<size_t>(size));
            run_ranks(size, [&](int rank) {
              auto context = thread_context(rank, size, store);
              context.network_interface = interface;
              context.settings["TUTTI_TCP_SOCKETS"] = std::to_string(sockets);
              transports[static_cast<size_t>(rank)] = make_stream_transport(
                  rank, find_backend("tcp").open(context, others(rank, size)));
            });
            return transports;
          }};
}

INSTANTIATE_TEST_SUITE_P(Tcp, TransportConformance,
                         testing::Values(maker("IPv4", "127.0.0.1", 1), maker("IPv6", "::1", 1),
                                         maker("ThreeSockets", "127.0.0.1", 3)),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tutti::test
