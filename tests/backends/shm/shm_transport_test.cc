#include "tests/backends/conformance/transport_conformance.h"

namespace tutti::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Shm, TransportConformance,
                         testing::Values(TransportMaker{"shm", "shm", [](int size) {
                                                          return make_transports(
                                                              find_backend("shm"), size);
                                                        }}));

// The transport of a composite backend: two types of channels, each opened to some of the peers
// only.
Transports make_mixed(int size) {
  const auto store = make_memory_store();
  Transports transports(static_cast<size_t>(size));
  run_ranks(size, [&](int rank) {
    const auto context = thread_context(rank, size, store);
    std::vector<std::unique_ptr<Channel>> channels(static_cast<size_t>(size));
    for (const char* name : {"shm", "memory"}) {
      std::vector<int> peers;
      for (const int peer : others(rank, size))
        if (((rank + peer) % 2 == 0) == (name == std::string_view("shm"))) peers.push_back(peer);
      auto opened = find_backend(name).open(context, peers);
      for (int peer = 0; peer < size; ++peer) {
        const auto at = static_cast<size_t>(peer);
        const bool wanted = std::find(peers.begin(), peers.end(), peer) != peers.end();
        EXPECT_EQ(opened[at] != nullptr, wanted);
        if (wanted) channels[at] = std::move(opened[at]);
      }
    }
    transports[static_cast<size_t>(rank)] = make_stream_transport(rank, std::move(channels));
  });
  return transports;
}

INSTANTIATE_TEST_SUITE_P(Mixed, TransportConformance,
                         testing::Values(TransportMaker{"mixed", "", make_mixed}));

}  // namespace
}  // namespace tutti::test
