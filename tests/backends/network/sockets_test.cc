#include "tutti/backends/network/sockets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/expect_error.h"

namespace tutti {
namespace {

using test::expect_error;
using test::expect_refused;

TEST(Sockets, APortInUseIsNamedWithWhatToDo) {
  asio::io_context io;
  const auto first = listen_on(io, {asio::ip::make_address("127.0.0.1"), 0});
  const auto taken = first.local_endpoint();
  expect_error(ErrorCode::io,
               "cannot listen on " + to_text(taken) +
                   ": the port is in use by another process; choose another port, or 0 for any "
                   "free one",
               [&] { listen_on(io, taken); });
}

TEST(Sockets, AnAddressThatThisHostHasNotIsNamed) {
  asio::io_context io;
  expect_error(ErrorCode::io, "cannot listen on 192.0.2.1:0: ", [&] {
    listen_on(io, {asio::ip::make_address("192.0.2.1"), 0});
  });
}

TEST(Sockets, HostsAndPortsThatCannotBe) {
  asio::io_context io;
  for (const int port : {-1, 65536})
    expect_refused(
        "port " + std::to_string(port) + " of host 127.0.0.1 is out of range, expected 0 to 65535",
        [&] { resolve(io, "127.0.0.1", port); });
  const std::string longest(300, 'x');  // longer than names may be, so no server is asked
  expect_error(ErrorCode::io, "no address is known for host " + longest + ": ",
               [&] { resolve(io, longest, 80); });
  const auto found = resolve(io, "::1", 80);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(to_text(found[0]), "[::1]:80");
}

TEST(Sockets, ACongestionControlThatCannotBeHadIsRefused) {
  check_congestion("");
  const auto error =
      test::expect_error(ErrorCode::invalid_argument, "", [&] { check_congestion("warp"); });
  EXPECT_THAT(error.what(),
              testing::AnyOf(
                  testing::HasSubstr("=warp is not a congestion control of this host's kernel; "),
                  testing::HasSubstr("=warp needs a privilege (CAP_NET_ADMIN) on this host; ")));
}

}  // namespace
}  // namespace tutti
