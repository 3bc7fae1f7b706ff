#include "tests/backends/conformance/store_conformance.h"

namespace tutti::test {
namespace {

std::function<std::shared_ptr<Store>()> clients() {
  return [server = std::make_shared<TcpStoreServer>("127.0.0.1", 0, "secret")] {
    return connect_tcp_store("127.0.0.1", server->port(), "secret", Deadline::after(20));
  };
}
std::function<std::shared_ptr<Store>()> local_views() {
  return
      [server = std::make_shared<TcpStoreServer>("127.0.0.1", 0, "")] { return server->local(); };
}
INSTANTIATE_TEST_SUITE_P(Tcp, StoreConformance,
                         testing::Values(StoreMaker{"Clients", clients},
                                         StoreMaker{"LocalViews", local_views}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tutti::test
