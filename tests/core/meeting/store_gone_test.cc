// The job's store goes away, hangs or comes back. The tests check which errors the ranks report,
// and when.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/backends/support/tcp_raw_socket.h"
#include "tests/support/expect_error.h"
#include "tests/support/forwarding_store.h"
#include "tests/support/network_namespaces.h"
#include "tests/support/ports.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/seconds_since.h"
#include "tests/support/wait_until.h"
#include "tutti/core/communicator.h"
#include "tutti/core/meeting/served_store.h"

namespace tutti {
namespace {

using test::error_of;
using test::on_threads;
using test::seconds_since;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

Options rank_at(const std::string& port, int rank, int size) {
  Options options;
  options.rank = options.local_rank = rank;
  options.size = options.local_size = size;
  options.launcher = "explicit";
  options.store = "tcp://127.0.0.1:" + port;
  options.secret = "a secret of this test";
  options.backend = "tcp";
  options.connect_timeout = 20;
  return options;
}

// A process that runs `body` until it is killed.
class Child {
 public:
  explicit Child(const std::function<void()>& body) : pid_(::fork()) {
    if (pid_ != 0) return;
    try {
      body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      ::_exit(1);
    }
    while (true) ::pause();
  }
  ~Child() { kill(); }
  void stop() const {
    ::kill(pid_, SIGSTOP);
    ::waitpid(pid_, nullptr, WUNTRACED);
  }
  void kill() {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_;
};

// A program's own store that stops answering at some moment, like a client without a deadline whose
// server hangs. Each call waits until it may go on.
class SilentStore final : public test::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  void fall_silent() {
    const std::lock_guard lock(mutex_);
    is_silent_ = true;
  }
  void speak() {
    const std::lock_guard lock(mutex_);
    is_silent_ = false;
    changed_.notify_all();
  }

 private:
  Store& rest() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !is_silent_; });
    return ForwardingStore::rest();
  }

  std::mutex mutex_;  // guards the fields below
  std::condition_variable changed_;
  bool is_silent_ = false;
};

class SilentStoreTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Of, SilentStoreTest, testing::Values("shm", "tcp"),
                         [](const auto& info) { return info.param; });

// A rank is lost while the store hangs. The others still get the error, and close without waiting
// for the store.
TEST_P(SilentStoreTest, ALossIsHeardAtOnce) {
  const test::ScratchFolder folder;
  const auto options_of = [&](int rank) {
    auto options = rank_at("1", rank, 3);
    options.store = "file://" + folder.path() + "/store";
    options.backend = GetParam();
    return options;
  };
  Child two([&] {
    static const auto comm = Communicator::create(options_of(2));
    comm->barrier_blocking();
  });
  std::vector<std::shared_ptr<SilentStore>> stores;
  for (int rank = 0; rank < 2; ++rank)
    stores.push_back(std::make_shared<SilentStore>(make_file_store(folder.path() + "/store")));
  std::atomic<int> through = 0;
  on_threads(0, 2, [&](int rank) {
    auto options = options_of(rank);
    const auto& store = stores[static_cast<size_t>(rank)];
    options.store_object = store;
    auto comm = Communicator::create(options);
    comm->barrier_blocking();
    store->fall_silent();
    for (++through; through < 2;) std::this_thread::yield();
    if (rank == 0) two.kill();
    std::vector<float> ones(10, 1.0f);
    const auto error = error_of([&] { comm->allreduce("ones", ones).wait(); }, 2);
    EXPECT_EQ(error.code(), ErrorCode::peer_lost) << error.what();
    EXPECT_EQ(error.rank(), 2);
    const auto closing = Clock::now();
    comm.reset();
    EXPECT_LT(seconds_since(closing), 2);
    store->speak();
  });
}

TEST(StoreGone, WhatHeldItHasEnded) {
  const auto port = test::own_port();
  Child launcher([&] {
    static const TcpStoreServer server("127.0.0.1", std::stoi(port), "a secret of this test");
  });
  on_threads(0, 2, [&](int rank) {
    auto comm = Communicator::create(rank_at(port, rank, 2));
    comm->barrier_blocking();
    if (rank == 0) launcher.kill();
    comm->barrier_blocking();
    const auto error = error_of([&] { comm->shrink(); }, 2);
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    EXPECT_EQ(error.rank(), rank);
    EXPECT_THAT(error.what(),
                AllOf(StartsWith(fmt::format(
                          "shrink: the job's store tcp://127.0.0.1:{} does not answer (", port)),
                      HasSubstr(fmt::format("rank {} is cut off from it, or the process that held "
                                            "it has ended. Start this rank again",
                                            rank))));
  });
}

// Acts as if this rank were cut off from the store: no answer comes back.
TEST(StoreGone, ItStandsStillUntilTheDeadline) {
  const auto port = test::own_port();
  Child launcher([&] {
    static const TcpStoreServer server("127.0.0.1", std::stoi(port), "a secret of this test");
  });
  on_threads(0, 2, [&](int rank) {
    auto comm = Communicator::create(rank_at(port, rank, 2));
    comm->barrier_blocking();
    if (rank == 0) launcher.stop();
    comm->barrier_blocking();
    const auto begin = Clock::now();
    const auto error = error_of([&] { comm->shrink(Deadline::after(1)); }, 2.5);
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("it does not answer"), HasSubstr("is cut off")));
    EXPECT_GE(seconds_since(begin), 0.9);
  });
}

TEST(StoreGone, RankZeroHeldItAndWasLost) {
  const auto port = test::own_port();
  Child zero([&] {
    auto options = rank_at(port, 0, 3);
    options.serve_store = true;
    static const auto comm = Communicator::create(options);
    comm->barrier_blocking();
  });
  std::atomic<int> through = 0;
  on_threads(1, 3, [&](int rank) {
    auto options = rank_at(port, rank, 3);
    options.serve_store = true;
    auto comm = Communicator::create(options);
    comm->barrier_blocking();
    for (++through; through < 2;) std::this_thread::yield();
    if (rank == 1) zero.kill();
    EXPECT_THROW(comm->barrier_blocking(), Error);
    const auto error = error_of([&] { comm->shrink(); });
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    EXPECT_THAT(error.what(),
                HasSubstr("it lived in rank 0 of the job, which was lost, so the job ends. Start "
                          "it under tutti-run, which holds the store itself"));
  });
}

// Rank 1 fails for a reason of its own. Rank 0, which serves the store, gets the error too. Both
// call create() again and meet.
TEST(StoreGone, RankZeroHoldsItBeyondACreateThatFailed) {
  const auto port = test::own_port();
  std::atomic<int> lines = 0;
  on_threads(0, 2, [&](int rank) {
    auto options = rank_at(port, rank, 2);
    options.serve_store = true;
    options.log = [&](LogLevel, std::string_view) { ++lines; };
    if (rank == 1) options.network_interface = "eth99";
    EXPECT_THAT(error_of([&] { Communicator::create(options); }).what(),
                HasSubstr("TUTTI_INTERFACE=eth99 names no interface"));
    options.network_interface.clear();
    for (int again = 0; again < 3; ++again) {
      const auto comm = Communicator::create(options);
      comm->barrier_blocking();
      // Two communicators of one process share the store.
      Communicator::create(options)->barrier_blocking();
    }
  });
  EXPECT_EQ(lines, 0);
}

// The first communicator may be destroyed earlier. The log of the last one still gets the lines
// about strangers.
TEST(StoreGone, TheLastCommunicatorHearsOfStrangersThoughAnEarlierOneHasGone) {
  const auto port = test::own_port();
  std::atomic<int> first_lines = 0, last_lines = 0;
  auto options = rank_at(port, 0, 1);
  const auto serve = [&](std::atomic<int>& lines) {
    options.log = [&lines](LogLevel, std::string_view) { ++lines; };
    return serve_store(options, "127.0.0.1", std::stoi(port));
  };
  auto first = serve(first_lines);
  const auto last = serve(last_lines);
  first.listener.reset();
  RawConnection stranger(std::stoi(port));
  stranger.send("this is no member of the job");
  stranger.read_to_end();
  EXPECT_TRUE(test::wait_until([&] { return last_lines != 0; }, 20));
  EXPECT_EQ(first_lines, 0);
}

// No network interface is up, not even loopback.
TEST(NoNetwork, TcpOfOneHostSaysHowToBringLoopbackUp) {
  const auto why = test::NetworkNamespaces::unavailable();
  if (!why.empty()) GTEST_SKIP() << why;
  const test::NetworkNamespaces hosts(1);
  hosts.within(0, [&] {
    const auto down = fmt::format("ip link set lo down && ip link set {} down",
                                  test::NetworkNamespaces::kInterface);
    ASSERT_EQ(std::system(down.c_str()), 0);
    const auto store = make_memory_store();
    on_threads(0, 2, [&](int rank) {
      auto options = Options::thread_rank(rank, 2, store);
      options.backend = "tcp";
      const auto error = error_of([&] { Communicator::create(options); });
      EXPECT_EQ(error.code(), ErrorCode::unavailable);
      EXPECT_EQ(error.what(),
                fmt::format("rank {} has no network interface that is up, not even the loopback "
                            "interface, over which the ranks of one host reach each other; ip link "
                            "set lo up brings it up, and backend shm needs none",
                            rank));
      options.backend = "shm";
      EXPECT_EQ(Communicator::create(options)->size(), 2);
    });
  });
}

}  // namespace
}  // namespace tutti
