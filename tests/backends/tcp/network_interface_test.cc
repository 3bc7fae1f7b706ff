#include "tutti/backends/network/network_interface.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/expect_error.h"
#include "tests/support/forwarding_store.h"
#include "tutti/backends/backend.h"
#include "tutti/backends/network/asio.h"
#include "tutti/base/error.h"

namespace tutti {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A store that returns `local_` as the local address of its connection.
class DistantStore final : public test::ForwardingStore {
 public:
  explicit DistantStore(std::string local)
      : ForwardingStore(make_memory_store()), local_(std::move(local)) {}
  std::string local_address() const override { return local_; }

 private:
  const std::string local_;
};

TEST(NetworkInterfaceTest, TheChoiceFollowsTheDocumentedOrder) {
  const auto address = [](const char* text) { return asio::ip::make_address(text); };
  const std::vector<InterfaceAddress> here = {{"lo", address("127.0.0.1")},
                                              {"eth0", address("10.1.2.3")},
                                              {"lo", address("::1")},
                                              {"eth1", address("fd00::3")}};
  const auto choose = [&](const char* interface, bool one_host, const char* towards_store) {
    Context context;
    context.size = 2;
    context.places = {{"a", "a", 1}, {one_host ? "a" : "b", "", 2}};
    context.network_interface = interface;
    context.store = std::make_shared<DistantStore>(towards_store);
    return choose_address(context, here).to_string();
  };
  EXPECT_EQ(choose("", true, ""), "127.0.0.1");
  EXPECT_EQ(choose("", true, "10.1.2.3"), "127.0.0.1");
  EXPECT_EQ(choose("", false, "fd00::3"), "fd00::3");
  EXPECT_EQ(choose("eth0", true, ""), "10.1.2.3");
  EXPECT_EQ(choose("eth1", false, "10.1.2.3"), "fd00::3");
  EXPECT_EQ(choose("::1", true, ""), "::1");
  EXPECT_EQ(choose("127.0.0.9", true, ""), "127.0.0.9");
  // Other hosts cannot reach these addresses, or not by the address alone.
  for (const char* near : {"127.0.0.1", "fe80::3"}) EXPECT_NE(choose("", false, near), near);
  for (const char* wrong : {"eth7", "10.1.2.4"}) {
    const auto error =
        test::expect_error(ErrorCode::unavailable, "", [&] { choose(wrong, true, ""); });
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr(wrong), HasSubstr("eth0 10.1.2.3"), HasSubstr("eth1 fd00::3")));
  }
}

}  // namespace
}  // namespace tutti
