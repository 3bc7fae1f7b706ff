#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>

#include <fstream>
#include <list>
#include <string>
#include <string_view>

#include "tests/backends/support/tcp_rank_processes.h"
#include "tests/support/network_namespaces.h"
#include "tutti/backends/backend.h"
#include "tutti/backends/tcp/connector.h"
#include "tutti/backends/tcp/tcp_channel.h"
#include "tutti/base/descriptor.h"
#include "tutti/base/error.h"

namespace tutti::test {
namespace {

// One rank on each of several hosts.
class TcpNamespacesTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto reason = NetworkNamespaces::unavailable();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

// Sends one word to every peer and reads the word of every peer.
bool exchange_words(const Context& context) {
  std::list<TcpChannel> channels;
  for (auto& [peer, socket] : connect_peers(context, others(context)))
    channels.emplace_back(std::move(socket));
  std::string word = "word";
  for (auto& channel : channels) {
    const iovec part{word.data(), word.size()};
    if (channel.write(std::span(&part, 1)) != word.size()) return complain(context, "cannot write");
  }
  for (auto& channel : channels) {
    Poller poller;
    channel.watch(poller);
    std::array<std::byte, 4> bytes;
    size_t have = 0;
    while (have < bytes.size()) {
      have += channel.read(std::span(bytes).subspan(have));
      if (have < bytes.size() && !poller.wait(10'000)) return complain(context, "nothing came");
    }
  }
  meet(context, "done");  // nobody leaves before all ranks have read
  return true;
}

TEST_F(TcpNamespacesTest, RanksOnSeveralHostsMeetByTheAddressThatReachesTheStore) {
  NetworkNamespaces hosts(3);
  for (const bool ipv6 : {false, true}) {
    RankProcesses ranks(hosts, {0, 1, 2});
    if (ipv6) ranks.ipv6();
    ranks.run([&](Context& context) {
      if (!exchange_words(context)) return false;
      const auto own = *context.store->try_get("tcp/0/" + std::to_string(context.rank));
      const auto expected = ipv6 ? hosts.address_ipv6(context.rank) : hosts.address(context.rank);
      return own.starts_with(expected + " ") || complain(context, own);
    });
  }
}

// The congestion control that the kernel reports for a connection.
std::string congestion_of(const Descriptor& socket) {
  char name[32] = "";
  socklen_t length = sizeof name - 1;
  ::getsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, name, &length);
  return name;
}

TEST_F(TcpNamespacesTest, CongestionControlIsTheHostsOwnUnlessItIsNamed) {
  NetworkNamespaces hosts(2);
  const auto expect = [&](const std::string& wanted, const std::string& got) {
    RankProcesses(hosts, {0, 1}).run([&](Context& context) {
      context.settings["TUTTI_TCP_CONGESTION"] = wanted;
      for (const auto& [peer, socket] : connect_peers(context, others(context)))
        if (const auto is = congestion_of(socket); is != got)
          return complain(context, fmt::format("wanted \"{}\", got {}", wanted, is));
      meet(context, "done");
      return true;
    });
  };
  for (const int host : {0, 1})
    hosts.within(host, [] {
      std::ofstream("/proc/sys/net/ipv4/tcp_congestion_control") << "reno" << std::flush;
    });
  expect("", "reno");
  expect("cubic", "cubic");
  // Two ranks of one host use loopback, even though they connect to the host's address.
  RankProcesses(hosts, {0, 0}).run([&](Context& context) {
    context.network_interface = NetworkNamespaces::kInterface;
    for (const auto& [peer, socket] : connect_peers(context, others(context)))
      if (congestion_of(socket) != "cubic") return complain(context, congestion_of(socket));
    meet(context, "done");
    return true;
  });
}

TEST_F(TcpNamespacesTest, TheInterfaceCanBeNamed) {
  NetworkNamespaces hosts(2);
  RankProcesses(hosts, {0, 1}).ipv6().run([](Context& context) {
    context.network_interface = NetworkNamespaces::kInterface;
    return exchange_words(context) && context.store->try_get("tcp/0/0")->starts_with("10.83.0.1 ");
  });
}

TEST_F(TcpNamespacesTest, AHostThatCannotBeReachedIsNamedAtTheDeadline) {
  NetworkNamespaces hosts(3);
  // Host 1 is cut off after it has published its address. The other ranks cannot connect to it.
  Bell told;
  RankProcesses(hosts, {0, 1, 2})
      .run(
          [&](Context& context) {
            if (context.rank == 1) {
              context.store->set("tcp/0/1", hosts.address(1) + " 7001");
              told.ring();
              return true;
            }
            context.store->get("cut", context.deadline);
            context.deadline = Deadline::after(1.5);
            const auto begin = Clock::now();
            try {
              connect_peers(context, others(context));
            } catch (const Error& error) {
              const std::string_view text = error.what();
              const bool right = error.code() == ErrorCode::timeout && error.rank() == 1 &&
                                 text.find("rank 1 (10.83.0.2:7001)") != text.npos &&
                                 text.find("connection with rank 1 at") != text.npos &&
                                 Clock::now() - begin < std::chrono::seconds(4);
              return right || complain(context, text);
            }
            return complain(context, "connected to a host that is cut off");
          },
          [&](Store& store) {
            Poller poller;
            poller.watch(told.descriptor(), EPOLLIN);
            EXPECT_TRUE(poller.wait(20'000));
            hosts.cut(1);
            store.set("cut", "yes");
          });
}

TEST_F(TcpNamespacesTest, ACutLinkThatComesBackLosesNothing) {
  NetworkNamespaces hosts(2);
  RankProcesses(hosts, {0, 1})
      .run(
          [](Context& context) {
            auto socket = std::move(connect_peers(context, others(context)).begin()->second);
            TcpChannel channel(std::move(socket));
            Poller poller;
            channel.watch(poller);
            meet(context, "connected");
            if (context.rank == 0) {
              context.store->get("cut", context.deadline);
              std::string word = "late but whole";
              const iovec part{word.data(), word.size()};
              channel.write(std::span(&part, 1));
              context.store->set("written", "yes");
            }
            std::string heard;
            std::array<std::byte, 64> bytes;
            const std::string expected = context.rank == 0 ? "thanks" : "late but whole";
            while (heard.size() < expected.size()) {
              const auto count = channel.read(bytes);
              heard.append(reinterpret_cast<const char*>(bytes.data()), count);
              if (count == 0 && !poller.wait(15'000)) return complain(context, "nothing came");
            }
            if (context.rank == 1) {
              std::string word = "thanks";
              const iovec part{word.data(), word.size()};
              channel.write(std::span(&part, 1));
              poller.wait(5000);  // until the other side has read and closed
            }
            return heard == expected || complain(context, heard);
          },
          [&](Store& store) {
            const auto deadline = Deadline::after(20);
            store.get("connected", deadline);
            hosts.cut(1);
            store.set("cut", "yes");
            store.get("written", deadline);
            hosts.restore(1);
          });
}

}  // namespace
}  // namespace tutti::test
