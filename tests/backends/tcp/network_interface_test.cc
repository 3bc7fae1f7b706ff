#include "tutti/backends/network/network_interface.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/backends/backend.h"
#include "tutti/backends/network/asio.h"
#include "tutti/base/error.h"

namespace tutti {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A store that returns `local_` as the local address of its connection.
class DistantStore : public Store {
 public:
  explicit DistantStore(std::string local) : local_(std::move(local)) {}
  std::string local_address() const override { return local_; }
  void set(const std::string&, std::string_view) override {}
  std::string set_once(const std::string&, std::string_view) override { return {}; }
  std::optional<std::string> try_get(const std::string&) override { return {}; }
  std::string get(const std::string&, Deadline) override { return {}; }
  int64_t add(const std::string&, int64_t) override { return 0; }
  int64_t raise(const std::string&, int64_t) override { return 0; }
  void erase(const std::string&) override {}
  void erase_all(const std::string&) override {}

 private:
  std::string local_;
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
    try {
      choose(wrong, true, "");
      ADD_FAILURE() << wrong;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::unavailable);
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr(wrong), HasSubstr("eth0 10.1.2.3"), HasSubstr("eth1 fd00::3")));
    }
  }
}

}  // namespace
}  // namespace tutti
