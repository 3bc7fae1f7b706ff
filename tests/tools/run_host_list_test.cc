#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tools/run/host_list.h"
#include "tutti/base/error.h"

namespace tutti::run {
namespace {

using testing::HasSubstr;

std::string refusal(const std::string& text) {
  return test::error_of([&] { parse_hosts(text); }).what();
}

TEST(HostList, IsParsed) {
  const auto hosts = parse_hosts("a:2,b,10.0.0.1:3,[fd00::1]:4,[::1]");
  ASSERT_EQ(hosts.size(), 5u);
  EXPECT_EQ(hosts[0].name, "a");
  EXPECT_EQ(hosts[0].slots, 2);
  EXPECT_EQ(hosts[1].name, "b");
  EXPECT_EQ(hosts[1].slots, 1);
  EXPECT_EQ(hosts[2].slots, 3);
  EXPECT_EQ(hosts[3].name, "fd00::1");
  EXPECT_EQ(hosts[3].slots, 4);
  EXPECT_EQ(hosts[4].name, "::1");
}

TEST(HostList, GarbageIsRefused) {
  for (const char* text : {"", ",", "a,", "a:", "a:0", "a:-1", "a:x", "a:1:2", ":2", "[a", "[a]2",
                           "-oProxyCommand=x", "a b", "a;b", "$(x)", "a:99999999"})
    EXPECT_THAT(refusal(text), HasSubstr("--hosts: ")) << text;
  EXPECT_EQ(refusal("a:2,b,a"), "--hosts: a is there twice; write a:ranks once");
}

TEST(PlaceRanks, FillsHostAfterHost) {
  const std::vector<Host> hosts = {{"a", 2}, {"b", 3}};
  const auto places = place_ranks(hosts, 0);
  ASSERT_EQ(places.size(), 5u);
  EXPECT_EQ(places[1].host, 0);
  EXPECT_EQ(places[1].local_rank, 1);
  EXPECT_EQ(places[1].local_size, 2);
  EXPECT_EQ(places[4].rank, 4);
  EXPECT_EQ(places[4].host, 1);
  EXPECT_EQ(places[4].local_rank, 2);
  EXPECT_EQ(places[4].local_size, 3);
}

TEST(PlaceRanks, MayLeaveSlotsEmpty) {
  const auto places = place_ranks({{"a", 2}, {"b", 3}, {"c", 1}}, 3);
  ASSERT_EQ(places.size(), 3u);
  EXPECT_EQ(places[2].host, 1);
  EXPECT_EQ(places[2].local_size, 1);
}

TEST(PlaceRanks, RefusesMoreThanSlots) {
  EXPECT_STREQ(test::error_of([&] {
                 place_ranks({{"a", 2}}, 3);
               }).what(),
               "-np 3, but --hosts has room for 2");
}

TEST(ShellQuote, QuotesOnce) {
  EXPECT_EQ(shell_quote("/usr/bin/tutti-run"), "/usr/bin/tutti-run");
  EXPECT_EQ(shell_quote(""), "''");
  EXPECT_EQ(shell_quote("a b"), "'a b'");
  EXPECT_EQ(shell_quote("it's $x"), "'it'\\''s $x'");
}

}  // namespace
}  // namespace tutti::run
