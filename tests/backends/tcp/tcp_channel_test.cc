#include "tutti/backends/tcp/tcp_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/backends/support/tcp_raw_socket.h"
#include "tests/backends/support/world.h"
#include "tests/support/forwarding_store.h"
#include "tests/support/wait_until.h"
#include "tutti/backends/backend.h"
#include "tutti/backends/network/asio.h"
#include "tutti/backends/network/sockets.h"
#include "tutti/backends/tcp/connector.h"
#include "tutti/base/error.h"
#include "tutti/core/settings/option_table.h"

namespace tutti {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

// The result of a rank's attempt to connect.
struct Outcome {
  std::vector<std::unique_ptr<Channel>> channels;
  std::optional<Error> error;
  double seconds = 0;
};

// Ranks in threads that connect through one store.
class Meeting {
 public:
  Meeting(int size, std::string interface) : size_(size), interface_(std::move(interface)) {}

  Context context(int rank) {
    Context context;
    context.rank = rank;
    context.size = size_;
    context.store = server_.local();
    context.places.assign(static_cast<size_t>(size_), Place{"host", "host", 1});
    context.secret = "secret";
    context.network_interface = interface_;
    context.deadline = Deadline::after(20);
    context.settings = backend_settings({});
    context.log = [this](LogLevel, std::string_view line) {
      const std::lock_guard lock(mutex_);
      log_.emplace_back(line);
    };
    return context;
  }

  /// Connects the given ranks, each to all others; `adjust` may change a rank's context.
  std::vector<Outcome> run(const std::vector<int>& ranks,
                           const std::function<void(Context&)>& adjust = {}) {
    std::vector<Outcome> outcomes(static_cast<size_t>(size_));
    std::vector<std::thread> threads;
    for (const int rank : ranks) {
      threads.emplace_back([&, rank] {
        auto& outcome = outcomes[static_cast<size_t>(rank)];
        auto mine = context(rank);
        if (adjust) adjust(mine);
        std::vector<int> peers;
        for (int peer = 0; peer < size_; ++peer)
          if (peer != rank) peers.push_back(peer);
        const auto begin = Clock::now();
        try {
          outcome.channels.resize(static_cast<size_t>(size_));
          for (auto& [peer, socket] : connect_peers(mine, peers))
            outcome.channels[static_cast<size_t>(peer)] =
                std::make_unique<TcpChannel>(std::move(socket));
        } catch (const Error& error) {
          outcome.error = error;
        }
        outcome.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
      });
    }
    for (auto& thread : threads) thread.join();
    return outcomes;
  }

  std::shared_ptr<Store> store() { return server_.local(); }
  std::vector<std::string> log() {
    const std::lock_guard lock(mutex_);
    return log_;
  }

 private:
  const int size_;
  const std::string interface_;
  TcpStoreServer server_{"127.0.0.1", 0, "secret"};
  std::mutex mutex_;
  std::vector<std::string> log_;
};

std::vector<int> all(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

size_t write_bytes(Channel& channel, std::string_view bytes) {
  const iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  return channel.write(std::span(&part, 1));
}

// Reads `count` bytes, and sleeps with the channel's own watch() and arm().
std::string read_exactly(Channel& channel, size_t count) {
  Poller poller;
  channel.watch(poller);
  std::string bytes(count, '\0');
  size_t have = 0;
  while (have < count) {
    const auto got =
        channel.read(std::as_writable_bytes(std::span(bytes)).subspan(have, count - have));
    have += got;
    if (got == 0 && channel.arm(false) && !poller.wait(10'000)) break;
  }
  return bytes.substr(0, have);
}

// It failed with this code, in time, and says this.
template <class Says>
void expect_failed(const Outcome& outcome, ErrorCode code, double most_seconds, const Says& says) {
  ASSERT_TRUE(outcome.error);
  EXPECT_EQ(outcome.error->code(), code);
  EXPECT_THAT(outcome.error->what(), says);
  EXPECT_LT(outcome.seconds, most_seconds);
}

std::string loss_of(Channel& channel) {
  std::array<std::byte, 64> bytes;
  const auto deadline = Deadline::after(10);
  try {
    while (!deadline.passed()) channel.read(bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::peer_lost);
    return error.what();
  }
  return "no loss";
}

// Two connected channels over loopback.
std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>> make_pair_of_channels() {
  Meeting meeting(2, "");
  auto outcomes = meeting.run(all(2));
  if (outcomes[0].error) throw *outcomes[0].error;
  if (outcomes[1].error) throw *outcomes[1].error;
  return {std::move(outcomes[0].channels[1]), std::move(outcomes[1].channels[0])};
}

class TcpInterfaceTest : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Interfaces, TcpInterfaceTest,
                         testing::Values("", "127.0.0.1", "::1", "lo", "127.0.0.2"));

TEST_P(TcpInterfaceTest, EveryPairIsConnected) {
  for (const int size : {1, 2, 5}) {
    Meeting meeting(size, GetParam());
    auto outcomes = meeting.run(all(size));
    const auto channel = [&](int rank, int peer) -> Channel* {
      return outcomes[static_cast<size_t>(rank)].channels[static_cast<size_t>(peer)].get();
    };
    const auto word = [](int from, int to) { return std::to_string(100 + from * 10 + to); };
    for (int rank = 0; rank < size; ++rank) {
      ASSERT_FALSE(outcomes[static_cast<size_t>(rank)].error)
          << outcomes[static_cast<size_t>(rank)].error->what();
      EXPECT_EQ(channel(rank, rank), nullptr);
      for (int peer = 0; peer < size; ++peer) {
        if (peer != rank) {
          EXPECT_EQ(write_bytes(*channel(rank, peer), word(rank, peer)), 3u);
        }
      }
    }
    for (int rank = 0; rank < size; ++rank) {
      for (int peer = 0; peer < size; ++peer) {
        if (peer != rank) {
          EXPECT_EQ(read_exactly(*channel(rank, peer), 3), word(peer, rank));
        }
      }
    }
  }
}

TEST(TcpMeetingTest, MissingRanksAreNamedAtTheDeadline) {
  Meeting meeting(5, "");
  const auto outcomes =
      meeting.run({0, 2}, [](Context& context) { context.deadline = Deadline::after(2); });
  for (const int rank : {0, 2}) {
    const auto& outcome = outcomes[static_cast<size_t>(rank)];
    ASSERT_TRUE(outcome.error);
    EXPECT_EQ(outcome.error->code(), ErrorCode::timeout);
    EXPECT_EQ(outcome.error->rank(), 1);
    EXPECT_THAT(outcome.error->what(),
                HasSubstr(" waited without success for ranks 1 3 4 to announce a TCP address; "
                          "check that every rank was started and uses the same store and backend"));
    EXPECT_LT(outcome.seconds, 4.5);
  }
}

TEST(TcpMeetingTest, ARankThatAnnouncesItselfAndStaysSilentIsNamed) {
  RawListener silent;
  Meeting meeting(2, "");
  meeting.store()->set("tcp/0/0", "127.0.0.1 " + std::to_string(silent.port()));
  const auto outcomes =
      meeting.run({1}, [](Context& context) { context.deadline = Deadline::after(0.6); });
  expect_failed(
      outcomes[1], ErrorCode::timeout, 3,
      AllOf(HasSubstr("rank 0 (127.0.0.1:" + std::to_string(silent.port())),
            HasSubstr("check that the ranks run and that no firewall stands between them")));
}

// A store in which each key arrives just after the deadline of the get().
class LateStore final : public test::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  std::string get(const std::string&, Deadline deadline) override {
    while (!deadline.passed()) Clock::sleep_for(std::chrono::milliseconds(1));
    throw Error(ErrorCode::timeout, "late");
  }
};

TEST(TcpMeetingTest, AnAddressThatComesAtTheDeadlineIsNotMissing) {
  RawListener silent;
  Meeting meeting(2, "");
  meeting.store()->set("tcp/0/0", "127.0.0.1 " + std::to_string(silent.port()));
  const auto outcomes = meeting.run({1}, [](Context& context) {
    context.deadline = Deadline::after(0.3);
    context.store = std::make_shared<LateStore>(context.store);
  });
  ASSERT_TRUE(outcomes[1].error);
  EXPECT_EQ(outcomes[1].error->rank(), 0);
  EXPECT_THAT(outcomes[1].error->what(),
              AllOf(HasSubstr("rank 0 (127.0.0.1:" + std::to_string(silent.port())),
                    testing::Not(HasSubstr("to announce a TCP address"))));
}

TEST(TcpMeetingTest, WhatIsNoAddressInTheStoreIsShown) {
  Meeting meeting(2, "");
  meeting.store()->set("tcp/0/0", "somewhere else");
  const auto outcomes = meeting.run({1});
  ASSERT_TRUE(outcomes[1].error);
  EXPECT_EQ(outcomes[1].error->code(), ErrorCode::corrupt_data);
  EXPECT_STREQ(
      outcomes[1].error->what(),
      "the store says that rank 0 listens on \"somewhere else\", expected an address and a "
      "port");
}

TEST(TcpMeetingTest, ARankThatEndedAfterAnnouncingItselfIsNamedBeforeTheDeadline) {
  int port = 0;
  { port = RawListener().port(); }
  Meeting meeting(2, "");
  meeting.store()->set("tcp/0/0", "127.0.0.1 " + std::to_string(port));
  const auto outcomes = meeting.run({1});
  ASSERT_TRUE(outcomes[1].error);
  EXPECT_EQ(outcomes[1].error->code(), ErrorCode::peer_lost);
  EXPECT_EQ(outcomes[1].error->rank(), 0);
  EXPECT_THAT(outcomes[1].error->what(),
              AllOf(HasSubstr("rank 0 (127.0.0.1:"),
                    HasSubstr(" announced its address and refuses connections now; it has probably "
                              "ended")));
  EXPECT_LT(outcomes[1].seconds, 6);
}

TEST(TcpMeetingTest, AWrongSecretEndsTheMeetingOnEveryRankAtOnce) {
  for (const int culprit : {0, 2}) {
    Meeting meeting(3, "");
    const auto outcomes = meeting.run(all(3), [&](Context& context) {
      if (context.rank == culprit) context.secret = "wrong";
    });
    for (const auto& outcome : outcomes)
      expect_failed(outcome, ErrorCode::authentication, 6,
                    AllOf(HasSubstr("rank"), HasSubstr("TUTTI_SECRET")));
    EXPECT_FALSE(meeting.log().empty());
  }
}

TEST(TcpMeetingTest, AnUnknownInterfaceIsToldToEveryRankWithWhatThereIs) {
  Meeting meeting(3, "");
  const auto outcomes = meeting.run(all(3), [&](Context& context) {
    if (context.rank == 1) context.network_interface = "eht0";
  });
  for (const auto& outcome : outcomes)
    expect_failed(outcome, ErrorCode::unavailable, 6,
                  AllOf(HasSubstr("eht0"), HasSubstr("lo 127.0.0.1")));
}

TEST(TcpMeetingTest, AnUnknownCongestionControlIsRefusedWithWhatThereIs) {
  Meeting meeting(2, "");
  const auto outcomes = meeting.run(
      all(2), [](Context& context) { context.settings["TUTTI_TCP_CONGESTION"] = "warp"; });
  for (const auto& outcome : outcomes)
    expect_failed(outcome, ErrorCode::invalid_argument, 6,
                  AllOf(HasSubstr("TUTTI_TCP_CONGESTION=warp"), HasSubstr("reno")));
}

TEST(TcpMeetingTest, StrangersAtTheDoorAreTurnedAwayAndLogged) {
  Meeting meeting(2, "");
  std::atomic<bool> were_there{false};
  std::thread stranger([&] {
    const auto address = meeting.store()->get("tcp/0/0", Deadline::after(10));
    const int port = std::stoi(address.substr(address.find(' ') + 1));
    for (int i = 0; i < 20; ++i) RawConnection(port).send("GET / HTTP/1.1\r\n\r\n");
    were_there = true;
  });
  // Rank 1 waits until the strangers have connected.
  const auto outcomes = meeting.run(all(2), [&](Context& context) {
    EXPECT_TRUE(test::wait_until([&] { return context.rank == 0 || were_there; }, 20));
  });
  stranger.join();
  for (const auto& outcome : outcomes) EXPECT_FALSE(outcome.error) << outcome.error->what();
  const auto log = meeting.log();
  ASSERT_FALSE(log.empty());
  EXPECT_LE(log.size(), 3u);
  EXPECT_THAT(log.front(), AllOf(HasSubstr("rank 0 at 127.0.0.1"), HasSubstr("turned"),
                                 HasSubstr("is not a Tutti process")));
}

// Bytes that arrive, and bytes that the peer reads, count as signs of life. Acknowledgements by the
// peer's kernel alone do not.
TEST(TcpChannelTest, QuietIsWhoNeitherSendsNorTakes) {
  auto [a, b] = make_pair_of_channels();
  const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(300)); };
  std::vector<std::byte> buffer(1 << 20);
  write_bytes(*b, "word");
  while (a->read(buffer) == 0) {
  }
  EXPECT_LT(a->quiet_seconds(), 0.2);
  // The other side reads nothing, but its kernel acknowledges small messages.
  for (int i = 0; i < 3; ++i) write_bytes(*a, "ping");
  pause();
  EXPECT_GE(a->quiet_seconds(), 0.25);
  // The other side does not read a message that fills the buffers either.
  const std::string much(1 << 20, 'x');
  for (int i = 0; i < 64; ++i) write_bytes(*a, much);
  pause();
  a->quiet_seconds();  // records that the buffers were full
  pause();
  EXPECT_GE(a->quiet_seconds(), 0.25);
  // Now the other side reads some bytes and leaves others.
  const auto deadline = Deadline::after(30);
  while (a->quiet_seconds() >= 0.2 && !deadline.passed()) b->read(buffer);
  EXPECT_FALSE(deadline.passed());
}

TEST(TcpChannelTest, DeliveredIsWhatThePeersHostHas) {
  auto [a, b] = make_pair_of_channels();
  const std::string block(1 << 20, 'x');
  while (write_bytes(*a, block) > 0) {
  }
  EXPECT_FALSE(a->delivered());  // the peer's buffers are full, and it reads nothing
  std::vector<std::byte> buffer(1 << 20);
  const auto deadline = Deadline::after(10);
  while (!a->delivered() && !deadline.passed()) b->read(buffer);
  EXPECT_TRUE(a->delivered());
}

TEST(TcpChannelTest, BytesArriveInOrderBothWaysUnderBackPressure) {
  auto [a, b] = make_pair_of_channels();
  Poller poller;
  a->watch(poller);
  b->watch(poller);
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  constexpr size_t kBytes = 12 << 20;
  struct Direction {
    Channel* from;
    Channel* to;
    std::string sent, received;
    size_t written = 0;
  };
  std::array<Direction, 2> directions = {Direction{a.get(), b.get(), {}, {}},
                                         Direction{b.get(), a.get(), {}, {}}};
  for (auto& direction : directions) {
    direction.sent.resize(kBytes);
    for (auto& byte : direction.sent) byte = static_cast<char>(random());
  }
  const auto deadline = Deadline::after(30);
  std::vector<std::byte> buffer(100'000);
  size_t full = 0;
  bool moving = true;
  while (moving && !deadline.passed()) {
    moving = false;
    for (auto& [from, to, sent, received, written] : directions) {
      if (written < sent.size()) {
        // Writes three parts, one of them empty, like a header and two pieces.
        const size_t most = std::min<size_t>(random() % 300'000 + 1, sent.size() - written);
        const size_t first = most / 3;
        const iovec parts[] = {{sent.data() + written, first},
                               {nullptr, 0},
                               {sent.data() + written + first, most - first}};
        const size_t count = from->write(parts);
        full += count == 0;
        written += count;
      }
      if (random() % 3 == 0) {
        const size_t count = to->read(std::span(buffer).first(random() % buffer.size() + 1));
        received.append(reinterpret_cast<const char*>(buffer.data()), count);
      }
      moving = moving || received.size() < sent.size();
    }
  }
  EXPECT_TRUE(directions[0].sent == directions[0].received);
  EXPECT_TRUE(directions[1].sent == directions[1].received);
  EXPECT_GT(full, 0u);
}

TEST(TcpChannelTest, WritingIsWatchedOnlyWhileItIsWanted) {
  auto [a, b] = make_pair_of_channels();
  Poller poller;
  a->watch(poller);
  EXPECT_TRUE(a->arm(false));
  EXPECT_FALSE(poller.wait(0));  // the socket is writable, but arm() did not ask for it
  EXPECT_TRUE(a->arm(true));
  EXPECT_TRUE(poller.wait(0));

  const std::string chunk(1 << 20, 'x');
  size_t written = 0;
  while (const auto count = write_bytes(*a, chunk)) written += count;
  EXPECT_TRUE(a->arm(true));
  EXPECT_FALSE(poller.wait(20));
  EXPECT_EQ(read_exactly(*b, written).size(), written);
  EXPECT_TRUE(poller.wait(5000));
  EXPECT_TRUE(a->arm(false));
  EXPECT_FALSE(poller.wait(0));
  write_bytes(*b, "news");
  EXPECT_TRUE(poller.wait(5000));
}

TEST(TcpChannelTest, TheEndIsToldAfterTheLastByte) {
  auto [a, b] = make_pair_of_channels();
  const std::string words(3 << 20, 'w');
  size_t written = 0;
  while (const auto count = write_bytes(*a, words)) written += count;
  std::thread closing([&a = a] { a.reset(); });
  EXPECT_EQ(read_exactly(*b, written).size(), written);
  closing.join();
  EXPECT_EQ(loss_of(*b), "end of file");
}

// The peer closes with unread bytes, so writes to it fail. Its last message must still be readable.
TEST(TcpChannelTest, AFailedWriteDoesNotHideWhatThePeerSaidBefore) {
  auto [a, b] = make_pair_of_channels();
  EXPECT_EQ(write_bytes(*a, "goodbye"), 7u);
  write_bytes(*b, "never read");
  a.reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  for (int i = 0; i < 5; ++i) {
    write_bytes(*b, "too late");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_FALSE(b->arm(false));
  std::array<std::byte, 64> bytes;
  EXPECT_EQ(b->read(bytes), 7u);
  EXPECT_THAT(loss_of(*b), AnyOf("connection reset", "end of file"));
}

TEST(TcpChannelTest, AResetIsToldAsOne) {
  Meeting meeting(2, "");
  std::array<Descriptor, 2> sockets;
  test::run_ranks(2, [&](int rank) {
    const auto context = meeting.context(rank);
    sockets[static_cast<size_t>(rank)] =
        std::move(connect_peers(context, std::array{1 - rank}).begin()->second);
  });
  TcpChannel channel(std::move(sockets[0]));
  const linger abort_on_close{1, 0};
  ASSERT_EQ(
      ::setsockopt(sockets[1].get(), SOL_SOCKET, SO_LINGER, &abort_on_close, sizeof abort_on_close),
      0);
  sockets[1].reset();
  EXPECT_EQ(loss_of(channel), "connection reset");
}

// A lost channel is still in the poller and must not keep its owner awake.
TEST(TcpChannelTest, ALostChannelWakesNobodyAnyMore) {
  auto [a, b] = make_pair_of_channels();
  Poller poller;
  b->watch(poller);
  a.reset();
  EXPECT_TRUE(poller.wait(5000));
  EXPECT_EQ(loss_of(*b), "end of file");
  EXPECT_FALSE(poller.wait(0));
}

}  // namespace
}  // namespace tutti
