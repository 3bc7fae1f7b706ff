#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/backends/support/tcp_rank_processes.h"
#include "tests/support/expect_error.h"
#include "tests/support/network_namespaces.h"
#include "tutti/backends/plugins.h"
#include "tutti/base/error.h"

namespace tutti::test {
namespace {

class HierarchicalFallbackTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto reason = NetworkNamespaces::unavailable();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

// Each parameter is a layout of ranks over hosts.
class HierarchicalTest : public HierarchicalFallbackTest,
                         public testing::WithParamInterface<std::vector<int>> {};
INSTANTIATE_TEST_SUITE_P(Layouts, HierarchicalTest,
                         testing::Values(std::vector{0, 0, 1, 1}, std::vector{0, 0, 0, 1},
                                         std::vector{0, 1, 2, 2}, std::vector{0, 1, 0, 1}),
                         [](const auto& info) {
                           std::string name = "RanksOnHosts";
                           for (const int host : info.param) name += std::to_string(host);
                           return name;
                         });

int host_count(const std::vector<int>& layout) {
  return *std::max_element(layout.begin(), layout.end()) + 1;
}

// Checks that allreduces are right, and use shared memory within a host and TCP between hosts.
bool uses_both_levels(Context& context) {
  const auto backend = find_backend("hierarchical").connect(context);
  auto& transport = *backend->transport();
  for (const int peer : others(context)) {
    const bool near = context.places[static_cast<size_t>(peer)].host ==
                      context.places[static_cast<size_t>(context.rank)].host;
    if (transport.route(peer) != (near ? "shm" : "tcp"))
      return complain(context, "route to " + std::to_string(peer) + " is " +
                                   std::string(transport.route(peer)));
  }
  uint64_t tag = 1;
  for (const int64_t count : {0, 1, 3, 5, 1000, 300'001})
    if (!sums_are_right(context, *backend, count, tag++)) return false;
  meet(context, "done");
  transport.goodbye(2);
  return true;
}

TEST_P(HierarchicalTest, SharedMemoryWithinAHostAndTcpBetweenHosts) {
  NetworkNamespaces hosts(host_count(GetParam()));
  RankProcesses(hosts, GetParam()).with(builtin_backends()).run(uses_both_levels);
}

TEST_P(HierarchicalTest, SharedMemoryWithinAHostAndUcxBetweenHosts) {
  std::vector<const BackendPlugin*> plugins;
  try {
    plugins = load_backends("shm+ucx", {}, {});
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  NetworkNamespaces hosts(host_count(GetParam()));
  RankProcesses(hosts, GetParam()).with(plugins).run([](Context& context) {
    context.name = "shm+ucx";
    ::setenv("UCX_TLS", "tcp", 1);  // UCX knows that these hosts are one machine
    return uses_both_levels(context);
  });
}

// A backend that cannot be a level is refused before anybody connects.
TEST(Hierarchical, ALevelNeedsMessages) {
  constexpr BackendPlugin kWhole{.name = "whole"};
  const auto builtin = builtin_backends();
  std::vector<const BackendPlugin*> plugins(builtin.begin(), builtin.end());
  plugins.push_back(&kWhole);
  for (const auto& [name, why] :
       {std::pair("shm+whole",
                  "backend whole runs whole collectives and offers no messages, so "
                  "shm+whole cannot use it between hosts; use shm+tcp, or whole alone"),
        std::pair("whole+tcp",
                  "backend whole has no channels for the ranks of one host in "
                  "whole+tcp; use shm+tcp")}) {
    Context context;
    context.name = name;
    context.plugins = plugins;
    EXPECT_STREQ(expect_error(ErrorCode::invalid_argument, "",
                              [&] { find_backend("hierarchical").connect(context); })
                     .what(),
                 why);
  }
}

// The operation is a reduce-scatter within hosts, an allreduce between them, and an allgather
// within hosts. For h hosts, 2 (h - 1) / h of the data leaves each host, however many ranks it has.
TEST_P(HierarchicalTest, CrossHostBytesAreTheLeastThereCanBe) {
  const auto& layout = GetParam();
  const int h = host_count(layout);
  NetworkNamespaces hosts(h);
  constexpr int64_t kCount = 1 << 20;
  RankProcesses ranks(hosts, layout);
  ranks.with(builtin_backends()).run([&](Context& context) {
    context.algorithms = "allreduce:0-inf=hierarchical";
    const auto backend = find_backend("hierarchical").connect(context);
    auto& transport = *backend->transport();
    const auto before = transport.counters().bytes_to_peer;
    if (!sums_are_right(context, *backend, kCount, 1)) return false;
    const auto after = transport.counters().bytes_to_peer;
    const int own_host = layout[static_cast<size_t>(context.rank)];
    for (const int peer : others(context)) {
      const auto index = static_cast<size_t>(peer);
      if (layout[index] != own_host)
        context.store->add("bytes/" + std::to_string(own_host),
                           static_cast<int64_t>(after[index] - before[index]));
    }
    meet(context, "done");
    transport.goodbye(2);
    return true;
  });
  const int64_t bytes = kCount * int64_t{sizeof(float)};
  const int64_t least = 2 * bytes * (h - 1) / h;
  for (int host = 0; host < h; ++host) {
    const auto sent = ranks.store()->add("bytes/" + std::to_string(host), 0);
    EXPECT_GE(sent, least - 8 * h) << "host " << host;  // allows for chunks of whole elements
    EXPECT_LE(sent, least + least / 100) << "host " << host;
  }
}

// Opens shared memory on both ranks of a host, then fails on rank 1.
std::vector<std::unique_ptr<Channel>> open_on_rank_0(const Context& context,
                                                     std::span<const int> peers) {
  auto channels = find_backend("shm").open(context, peers);
  if (context.rank == 0) {
    context.store->set("rank 0 has opened it", "yes");
    return channels;
  }
  context.store->get("rank 0 has opened it", context.deadline);
  throw Error(ErrorCode::unavailable, "rank 1 lacks shared memory");
}

// Sums are right, all go by TCP, and rank 0 alone logs one line why, which holds `line`.
bool all_go_by_tcp(Context& context, std::string_view line) {
  std::vector<std::string> log;
  context.log = [&](LogLevel, std::string_view said) { log.emplace_back(said); };
  const auto backend = find_backend("hierarchical").connect(context);
  for (const int peer : others(context))
    if (backend->transport()->route(peer) != "tcp") return complain(context, "not by TCP");
  if (!sums_are_right(context, *backend, 1000, 1)) return false;
  meet(context, "done");
  backend->transport()->goodbye(2);
  const bool told = log.size() == 1 && log[0].find(line) != std::string::npos;
  return told == (context.rank == 0) || complain(context, log.empty() ? "no log" : log[0]);
}

TEST_F(HierarchicalFallbackTest, ARankThatCannotShareMemoryTakesItsHostToTcp) {
  constexpr BackendPlugin kHalf{.name = "half", .open = open_on_rank_0};
  const auto builtin = builtin_backends();
  std::vector<const BackendPlugin*> plugins(builtin.begin(), builtin.end());
  plugins.push_back(&kHalf);
  NetworkNamespaces hosts(2);
  RankProcesses(hosts, {0, 0, 1}).with(plugins).run([&](Context& context) {
    context.name = "half+tcp";
    return all_go_by_tcp(context, "use tcp instead: rank 1 saw: rank 1 lacks shared memory");
  });
}

// Two ranks claim to share a host but run in different namespaces.
TEST_F(HierarchicalFallbackTest, RanksThatCannotShareMemoryAgreeOnTcp) {
  NetworkNamespaces hosts(3);
  RankProcesses(hosts, {0, 1, 2}).with(builtin_backends()).run([&](Context& context) {
    context.places[0].host = context.places[1].host = "one host";
    context.deadline = Deadline::after(60);
    return all_go_by_tcp(context, "ranks 0 1 share host ");
  });
}

}  // namespace
}  // namespace tutti::test
