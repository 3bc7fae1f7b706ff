#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/backends/support/tcp_raw_socket.h"
#include "tests/support/expect_error.h"
#include "tests/support/seconds_since.h"
#include "tutti/backends/store.h"
#include "tutti/backends/store/tcp_store_table.h"
#include "tutti/base/error.h"

namespace tutti {
namespace {

using test::error_of;
using test::seconds_since;
using testing::AllOf;
using testing::HasSubstr;

constexpr char kSecret[] = "a secret of the job";

std::shared_ptr<Store> client_of(const TcpStoreServer& server, const char* host = "127.0.0.1") {
  return connect_tcp_store(host, server.port(), kSecret, Deadline::after(10));
}

class TcpStoreAddressTest : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Loopback, TcpStoreAddressTest, testing::Values("127.0.0.1", "::1"),
                         [](const auto& info) { return info.index ? "IPv6" : "IPv4"; });

TEST_P(TcpStoreAddressTest, EveryCallWorksRemotelyAndLocally) {
  TcpStoreServer server(GetParam(), 0, kSecret);
  const auto remote = client_of(server, GetParam());
  for (const auto& store : {remote, server.local()}) {
    EXPECT_EQ(store->try_get("a"), std::nullopt);
    store->set("a", "1");
    EXPECT_EQ(store->try_get("a"), "1");
    store->set("a", std::string_view("2\0x", 3));
    EXPECT_EQ(store->get("a", Deadline::after(0)), std::string_view("2\0x", 3));
    EXPECT_EQ(store->set_once("a", "3"), std::string_view("2\0x", 3));
    EXPECT_EQ(store->set_once("b", "3"), "3");
    store->set("empty", "");
    EXPECT_EQ(store->try_get("empty"), "");
    EXPECT_EQ(store->add("count", 5), 5);
    EXPECT_EQ(store->add("count", -7), -2);
    EXPECT_EQ(store->try_get("count"), "-2");
    for (const auto* key : {"a", "b", "empty", "count"}) store->erase(key);
    store->erase("never there");
    EXPECT_EQ(store->try_get("a"), std::nullopt);
  }
  EXPECT_EQ(remote->local_address(), GetParam());
  EXPECT_EQ(server.local()->local_address(), GetParam());
}

TEST(TcpStoreTest, BoundsAreKeptAndTheLargestValueTravels) {
  TcpStoreServer server("127.0.0.1", 0, kSecret);
  const auto remote = client_of(server);
  for (const auto& store : {remote, server.local()}) {
    const std::string largest(1 << 20, 'v'), key(1 << 10, 'k');
    store->set(key, largest);
    EXPECT_EQ(store->try_get(key), largest);
    const auto long_key = error_of([&] { store->set(key + "k", "v"); });
    EXPECT_EQ(long_key.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(long_key.what(),
                AllOf(HasSubstr("a store's key has 1 to 1024 bytes"), HasSubstr("has 1025")));
    const auto long_value = error_of([&] { store->set("big", largest + "v"); });
    EXPECT_THAT(
        long_value.what(),
        HasSubstr("a store's value has at most 1048576 bytes, that of \"big\" has 1048577"));
    EXPECT_EQ(error_of([&] { store->set("", "v"); }).code(), ErrorCode::invalid_argument);
    EXPECT_EQ(store->try_get(key), largest);  // the store still works
  }
}

TEST(TcpStoreTest, AddRefusesWhatIsNoNumber) {
  TcpStoreServer server("127.0.0.1", 0, kSecret);
  const auto store = client_of(server);
  store->set("word", "twelve");
  const auto error = error_of([&] { store->add("word", 1); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(
      error.what(),
      HasSubstr("the store's key \"word\" holds \"twelve\", which no number can be added to"));
  store->set("most", "9223372036854775807");
  EXPECT_THROW(store->add("most", 1), Error);
}

TEST(TcpStoreTest, GetWaitsUntilTheKeyIsSetByAnybody) {
  TcpStoreServer server("127.0.0.1", 0, kSecret);
  const auto a = client_of(server), b = client_of(server), local = server.local();
  std::vector<std::pair<std::shared_ptr<Store>, std::shared_ptr<Store>>> pairs = {
      {a, b}, {a, a}, {a, local}, {local, a}, {local, local}};
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto key = "key" + std::to_string(i);
    std::thread setter([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      pairs[i].second->set(key, key);
    });
    EXPECT_EQ(pairs[i].first->get(key, Deadline::never()), key);
    setter.join();
  }
}

TEST(TcpStoreTest, GetTimesOutAndNamesTheKey) {
  TcpStoreServer server("127.0.0.1", 0, kSecret);
  const auto remote = client_of(server);
  for (const auto& store : {remote, server.local()}) {
    const auto begin = Clock::now();
    const auto error = error_of([&] { store->get("ranks/3", Deadline::after(0.2)); });
    EXPECT_EQ(error.code(), ErrorCode::timeout);
    EXPECT_THAT(error.what(),
                HasSubstr("no rank set the store's key \"ranks/3\" before the deadline"));
    EXPECT_GE(seconds_since(begin), 0.19);
    EXPECT_LT(seconds_since(begin), 3);
    store->set("ranks/3", "late");
    EXPECT_EQ(store->get("ranks/3", Deadline::after(60)), "late");
    store->erase("ranks/3");
  }
}

TEST(TcpStoreTest, AConnectionThatIsForgottenGetsNoAnswer) {
  asio::io_context io;
  StoreTable table(io);
  const int gone = 0, stays = 0;
  std::vector<StoreReply> gone_got, stays_got;
  const auto get = [&](const int& client, const char* key, std::vector<StoreReply>& got) {
    table.handle(&client,
                 {.id = 1,
                  .op = StoreOp::get,
                  .argument = StoreRequest::kNoTimeout,
                  .key = key,
                  .value = {}},
                 [&got](StoreReply reply) { got.push_back(std::move(reply)); });
  };
  for (const char* key : {"a", "b"}) get(gone, key, gone_got);
  get(stays, "a", stays_got);
  table.forget(&gone);
  for (const char* key : {"a", "b"})
    table.handle(&stays, {.id = 2, .op = StoreOp::set, .key = key, .value = "1"},
                 [](const StoreReply&) {});
  EXPECT_TRUE(gone_got.empty());
  ASSERT_EQ(stays_got.size(), 1u);
  EXPECT_EQ(stays_got[0].value, "1");
}

// Every thread waits for its neighbour's key through one client while other threads add to
// counters.
TEST(TcpStoreTest, ManyThreadsShareOneClient) {
  TcpStoreServer server("127.0.0.1", 0, kSecret);
  const auto store = client_of(server), other = client_of(server);
  constexpr int kThreads = 8, kRounds = 50;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const auto& mine = t % 3 ? store : other;
      const auto key = [](int round, int thread) {
        return std::to_string(round) + "/" + std::to_string(thread);
      };
      for (int round = 0; round < kRounds; ++round) {
        mine->set(key(round, t), key(t, round));
        const int next = (t + 1) % kThreads;
        EXPECT_EQ(mine->get(key(round, next), Deadline::after(30)), key(next, round));
        mine->add("count", 1);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(store->add("count", 0), kThreads * kRounds);
}

TEST(TcpStoreTest, ForkedProcessesMeet) {
  constexpr int kRanks = 4;
  // The children are forked before the server's thread exists, as in a launcher.
  int ports[2];
  ASSERT_EQ(::pipe(ports), 0);
  std::vector<pid_t> children;
  for (int rank = 0; rank < kRanks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      int port = 0;
      if (::read(ports[0], &port, sizeof port) != sizeof port) ::_exit(2);
      try {
        const auto store = connect_tcp_store("127.0.0.1", port, kSecret, Deadline::after(20));
        store->set("rank/" + std::to_string(rank), std::to_string(rank * rank));
        int64_t sum = 0;
        for (int peer = 0; peer < kRanks; ++peer)
          sum += std::stoi(store->get("rank/" + std::to_string(peer), Deadline::after(20)));
        store->add("sum", sum);
        ::_exit(0);
      } catch (const std::exception&) {
        ::_exit(1);
      }
    }
    children.push_back(child);
  }
  TcpStoreServer server("127.0.0.1", 0, kSecret);
  for (int rank = 0; rank < kRanks; ++rank) {
    const int port = server.port();
    ASSERT_EQ(::write(ports[1], &port, sizeof port), ssize_t{sizeof port});
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(server.local()->try_get("sum"), std::to_string(kRanks * (0 + 1 + 4 + 9)));
  ::close(ports[0]);
  ::close(ports[1]);
}

TEST(TcpStoreTest, AForkCannotUseItsParentsConnection) {
  TcpStoreServer server("127.0.0.1", 0, kSecret);
  const auto store = client_of(server);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto is_refused = [](Store& view) {
      try {
        view.set("a", "b");
        return false;
      } catch (const Error& error) {
        const std::string_view text =
            "this store was opened before a fork; the child must open one of its own";
        return error.code() == ErrorCode::closed && error.what() == text;
      }
    };
    const auto limited = store->until(Deadline::after(5));
    ::_exit(is_refused(*store) && is_refused(*limited) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// A key that does not come in time is a timeout, not a lost store: before, at and after the limit.
TEST(TcpStoreTest, ACallThatIsLimitedKnowsALateKeyFromALostStore) {
  TcpStoreServer server("127.0.0.1", 0, kSecret);
  const auto store = client_of(server);
  const auto begin = Clock::now();
  const auto limit = Deadline::after(0.3);
  const auto limited = store->until(limit);
  for (const auto& deadline : {limit, Deadline::after(20), Deadline::never()}) {
    const auto error = error_of([&] { limited->get("none", deadline); });
    EXPECT_EQ(error.code(), ErrorCode::timeout) << error.what();
  }
  EXPECT_LT(seconds_since(begin), 5);
  ASSERT_TRUE(limit.passed());
  limited->set("late", "1");
  EXPECT_EQ(limited->try_get("late"), "1");
}

TEST(TcpStoreTest, WrongSecretIsRefusedAtOnceNamingTheStore) {
  TcpStoreServer server("127.0.0.1", 0, kSecret);
  const auto begin = Clock::now();
  const auto error = error_of(
      [&] { connect_tcp_store("127.0.0.1", server.port(), "wrong", Deadline::after(30)); });
  EXPECT_EQ(error.code(), ErrorCode::authentication);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("127.0.0.1:" + std::to_string(server.port())),
                                  HasSubstr("TUTTI_SECRET")));
  EXPECT_LT(seconds_since(begin), 3);
  client_of(server)->set("still", "here");
}

TEST(TcpStoreTest, PortInUseNamesAddressAndPort) {
  for (const char* address : {"127.0.0.1", "::1"}) {
    TcpStoreServer server(address, 0, kSecret);
    const auto error = error_of([&] { TcpStoreServer(address, server.port(), kSecret); });
    EXPECT_EQ(error.code(), ErrorCode::io);
    EXPECT_THAT(error.what(), AllOf(HasSubstr(address), HasSubstr(std::to_string(server.port())),
                                    HasSubstr("in use")));
  }
  EXPECT_THAT(error_of([] { TcpStoreServer("203.0.113.7", 0, kSecret); }).what(),
              HasSubstr("203.0.113.7"));
  EXPECT_THAT(error_of([] { TcpStoreServer("127.0.0.1", 70000, kSecret); }).what(),
              HasSubstr("70000"));
}

TEST(TcpStoreTest, AnUnreachableStoreIsNamedAtTheDeadline) {
  int port = 0;
  { port = TcpStoreServer("127.0.0.1", 0, kSecret).port(); }
  const auto begin = Clock::now();
  const auto error =
      error_of([&] { connect_tcp_store("127.0.0.1", port, kSecret, Deadline::after(0.5)); });
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_THAT(error.what(),
              AllOf(HasSubstr("127.0.0.1:" + std::to_string(port)), HasSubstr("Connection refused"),
                    HasSubstr("check that the launcher (or rank 0) runs there")));
  EXPECT_LT(seconds_since(begin), 3);
  EXPECT_THAT(error_of([&] {
                connect_tcp_store("no-such-host.invalid", 1, kSecret, Deadline::after(0.3));
              }).what(),
              HasSubstr("no-such-host.invalid:1"));
}

TEST(TcpStoreTest, AClientWaitsForALateServer) {
  int port = 0;
  { port = TcpStoreServer("127.0.0.1", 0, kSecret).port(); }
  std::thread late([&] {
    const auto store = connect_tcp_store("127.0.0.1", port, kSecret, Deadline::after(20));
    store->set("late", "but there");
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  TcpStoreServer server("127.0.0.1", port, kSecret);
  EXPECT_EQ(server.local()->get("late", Deadline::after(20)), "but there");
  late.join();
}

TEST(TcpStoreTest, AnotherProgramOnThePortIsNamed) {
  RawListener listener;
  std::thread web([&] {
    auto connection = listener.accept();
    connection.send("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
    connection.read_to_end();
  });
  const auto error = error_of(
      [&] { connect_tcp_store("127.0.0.1", listener.port(), kSecret, Deadline::after(20)); });
  web.join();
  EXPECT_EQ(error.code(), ErrorCode::corrupt_data);
  EXPECT_THAT(error.what(),
              AllOf(HasSubstr(std::to_string(listener.port())), HasSubstr("not a Tutti process")));
}

TEST(TcpStoreTest, TheEndOfTheServerIsToldToEveryThread) {
  auto server = std::make_unique<TcpStoreServer>("127.0.0.1", 0, kSecret);
  const auto store = client_of(*server);
  const auto local = server->local();
  std::atomic<int> told = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      const auto error = error_of([&] { (i ? store : local)->get("never", Deadline::after(60)); });
      told += error.code() == ErrorCode::unavailable;
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const auto begin = Clock::now();
  server.reset();
  for (auto& thread : threads) thread.join();
  EXPECT_LT(seconds_since(begin), 2);
  EXPECT_EQ(told, 3);
  EXPECT_EQ(error_of([&] { store->set("a", "b"); }).code(), ErrorCode::unavailable);
  EXPECT_EQ(error_of([&] { local->set("a", "b"); }).code(), ErrorCode::unavailable);
}

TEST(TcpStoreTest, GarbageAndScansHarmNobody) {
  TcpStoreServer server("127.0.0.1", 0, kSecret);
  const auto store = client_of(server);
  std::thread waiter([&] { EXPECT_EQ(store->get("later", Deadline::after(30)), "x"); });
  for (int i = 0; i < 50; ++i) {
    RawConnection connection(server.port());
    connection.send(std::string(static_cast<size_t>(i * 37), static_cast<char>(i * 91)));
    if (i % 2) connection.send("TUTTI\r\n\x1a garbage that begins like one of ours");
    if (i % 3 == 0) connection.read_to_end_for(0.01);
  }
  client_of(server)->set("later", "x");
  waiter.join();
}

// Silent connections occupy all slots for strangers. Each newcomer takes the slot of one of them.
TEST(TcpStoreTest, ASlowLorisDelaysNobodyAndEnds) {
  TcpStoreServer server("127.0.0.1", 0, kSecret);
  const auto early = client_of(server);
  std::vector<std::unique_ptr<RawConnection>> silent;
  for (int i = 0; i < 500; ++i) {
    silent.push_back(std::make_unique<RawConnection>(server.port()));
    if (i % 2) silent.back()->send("TUTTI");
  }
  early->set("key", "served meanwhile");
  const auto begin = Clock::now();
  const auto late = connect_tcp_store("127.0.0.1", server.port(), kSecret, Deadline::after(25));
  EXPECT_EQ(late->try_get("key"), "served meanwhile");
  EXPECT_LT(seconds_since(begin), 3);
  EXPECT_TRUE(silent.front()->ends_within(10));
}

// A stopped store takes no more requests. A thread that waits to send its request must not delay
// another thread beyond that thread's deadline. Requests that were not begun have no effect.
TEST(TcpStoreTest, EachThreadsTurnToSendHasItsOwnDeadline) {
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    TcpStoreServer server("127.0.0.1", 0, kSecret);
    const int port = server.port();
    (void)!::write(pipe[1], &port, sizeof port);
    while (true) ::pause();
  }
  int port = 0;
  ASSERT_EQ(::read(pipe[0], &port, sizeof port), static_cast<ssize_t>(sizeof port));
  const auto store = connect_tcp_store("127.0.0.1", port, kSecret, Deadline::after(10));
  store->set("key", "value");
  ::kill(child, SIGSTOP);
  ASSERT_EQ(::waitpid(child, nullptr, WUNTRACED), child);
  // These requests exceed the kernel's buffers.
  std::vector<std::thread> patient;
  for (int i = 0; i < 16; ++i)
    patient.emplace_back(
        [&, i] { store->set("large" + std::to_string(i), std::string(1 << 20, 'v')); });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const auto begin = Clock::now();
  const auto error = error_of([&] { bounded(store, Deadline::after(0.3))->try_get("key"); });
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_LT(seconds_since(begin), 2);
  ::kill(child, SIGCONT);
  for (auto& thread : patient) thread.join();
  EXPECT_EQ(store->try_get("key"), "value");
  EXPECT_EQ(store->try_get("large15"), std::string(1 << 20, 'v'));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(pipe[0]);
  ::close(pipe[1]);
}

// The store is stopped, as if the network were cut or the launcher stood still.
TEST(TcpStore, AnAnswerThatDoesNotComeIsWaitedForUntilTheDeadline) {
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    TcpStoreServer server("127.0.0.1", 0, "secret");
    const int port = server.port();
    (void)!::write(pipe[1], &port, sizeof port);
    while (true) ::pause();
  }
  int port = 0;
  ASSERT_EQ(::read(pipe[0], &port, sizeof port), static_cast<ssize_t>(sizeof port));
  const auto store = connect_tcp_store("127.0.0.1", port, "secret", Deadline::after(10));
  store->set("key", "value");
  ::kill(child, SIGSTOP);
  ASSERT_EQ(::waitpid(child, nullptr, WUNTRACED), child);
  const auto begin = Clock::now();
  const auto hurried = make_prefix_store(bounded(store, Deadline::after(0.5)), "");
  const auto expect_gone = [](auto&& call) {
    test::expect_error(ErrorCode::unavailable, "", [&] { call(); });
  };
  expect_gone([&] { hurried->try_get("key"); });
  expect_gone([&] { hurried->set("key", "other"); });
  expect_gone([&] { bounded(hurried, Deadline::after(60))->get("none", Deadline::after(30)); });
  // Each call may take half a second beyond its deadline.
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(4));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(pipe[0]);
  ::close(pipe[1]);
}

}  // namespace
}  // namespace tutti
