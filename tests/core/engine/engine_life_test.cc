// The engine ends while threads wait for it. All of them get an error immediately, and nothing is
// left behind.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/time.h>
#include <time.h>

#include <atomic>
#include <csignal>
#include <mutex>
#include <thread>

#include "tests/core/engine/at_once.h"
#include "tests/support/ranks.h"
#include "tests/support/wait_until.h"
#include "tutti/backends/store.h"
#include "tutti/core/arena.h"
#include "tutti/core/engine/callback_queue.h"

namespace tutti {
namespace {

using test::error_at_once;
using test::kAtOnce;
using test::quiet;
using test::run_threads;
using testing::HasSubstr;

std::unique_ptr<Communicator> make_rank(int rank, int size, const std::shared_ptr<Store>& store,
                                        const test::Tune& tune = quiet) {
  auto options = Options::thread_rank(rank, size, store);
  tune(options);
  return Communicator::create(options);
}

// Runs two ranks. `body` gets rank 0's communicator, which it may destroy. Rank 1 stays until
// `body` is done.
void with_idle_peer(const std::function<void(std::unique_ptr<Communicator>&)>& body) {
  const auto store = make_memory_store();
  std::atomic<bool> is_done{false};
  std::thread peer([&] {
    const auto comm = make_rank(1, 2, store);
    while (!is_done) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  auto comm = make_rank(0, 2, store);
  body(comm);
  is_done = true;
  peer.join();
}

TEST(Destroyed, AWaiterHearsOfItAtOnce) {
  for (const int sleep_ms : {0, 1, 20})
    with_idle_peer([&](std::unique_ptr<Communicator>& comm) {
      std::vector<std::vector<float>> values(3, std::vector<float>(1000, 1.0f));
      std::vector<Work> works;
      for (size_t i = 0; i < values.size(); ++i)
        works.push_back(comm->allreduce(fmt::format("x{}", i), values[i]));
      std::vector<std::thread> waiters;
      for (auto& work : works)
        waiters.emplace_back([&] {
          const auto error = error_at_once([&] { work.wait(); });
          EXPECT_EQ(error.code(), ErrorCode::closed);
          EXPECT_THAT(error.what(),
                      HasSubstr("rank 0 closed this Communicator while the operation was pending"));
        });
      std::this_thread::sleep_for(std::chrono::milliseconds(sleep_ms));
      const auto begin = Clock::now();
      comm.reset();
      EXPECT_LT(std::chrono::duration<double>(Clock::now() - begin).count(), kAtOnce);
      for (auto& waiter : waiters) waiter.join();
    });
}

TEST(Destroyed, ABlockingCallHearsOfItAtOnce) {
  for (const int sleep_ms : {2, 20})
    with_idle_peer([&](std::unique_ptr<Communicator>& comm) {
      float value = 1;
      std::atomic<bool> is_there{false};
      std::thread waiter([&, used = comm.get()] {
        is_there = true;
        const auto error =
            error_at_once([&] { used->allreduce_blocking("x", std::span(&value, 1)); });
        EXPECT_EQ(error.code(), ErrorCode::closed);
      });
      while (!is_there) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(sleep_ms));
      comm->close();  // the waiter may not have begun its call
      waiter.join();
      comm.reset();
    });
}

// A callback destroys the communicator, on whichever thread runs it: the background thread or a
// thread that waits.
TEST(Destroyed, InsideACallback) {
  for (const bool waits : {false, true}) {
    const auto store = make_memory_store();
    std::atomic<bool> is_destroyed{false};
    std::thread peer([&] {
      const auto comm = make_rank(1, 2, store);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      std::vector<float> values(100, 1.0f);
      comm->allreduce("go", values).wait();
      while (!is_destroyed) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
    const auto seen = std::make_shared<int>(0);
    auto comm = make_rank(0, 2, store, [&](Options& options) {
      quiet(options);
      options.observer = [seen](std::string_view) {};  // lives as long as the engine
    });
    std::vector<float> values(100, 1.0f), other(100, 1.0f);
    auto never = comm->allreduce("never", other);
    comm->allreduce("go", values).then([&](std::exception_ptr error) {
      EXPECT_EQ(error, nullptr);
      comm.reset();
      is_destroyed = true;
    });
    if (waits) {
      EXPECT_EQ(error_at_once([&] { never.wait(); }).code(), ErrorCode::closed);
    }
    EXPECT_TRUE(test::wait_until([&] { return is_destroyed.load(); }, kAtOnce));
    EXPECT_EQ(error_at_once([&] { never.wait(); }).code(), ErrorCode::closed);
    peer.join();
    never = Work();
    EXPECT_TRUE(test::wait_until([&] { return seen.use_count() <= 1; }))
        << "its end was not seen through: the engine lives on";
  }
}

// The destructor waits for a callback that runs, for at most close_timeout.
TEST(Destroyed, WhileACallbackRuns) {
  for (const bool ends : {true, false}) {
    const auto store = make_memory_store();
    // Rank 1 submits "x" only after rank 0 has attached its callback. Otherwise the callback would
    // run within then().
    std::atomic<bool> attached{false}, runs{false}, may_end{false}, has_ended{false};
    std::thread peer([&] {
      const auto comm = make_rank(1, 2, store);
      EXPECT_TRUE(test::wait_until([&] { return attached.load(); }, 60));
      float value = 1;
      comm->allreduce("x", std::span(&value, 1)).wait();
    });
    auto comm = make_rank(0, 2, store, [&](Options& options) {
      quiet(options);
      options.close_timeout = ends ? kAtOnce : 0.5;
    });
    float value = 1;
    comm->allreduce("x", std::span(&value, 1)).then([&](std::exception_ptr) {
      runs = true;
      EXPECT_TRUE(test::wait_until([&] { return may_end.load(); }, 60));
      has_ended = true;
    });
    attached = true;
    EXPECT_TRUE(test::wait_until([&] { return runs.load(); }, kAtOnce));
    std::thread later([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      if (ends) may_end = true;
    });
    const auto begin = Clock::now();
    comm.reset();
    EXPECT_LT(std::chrono::duration<double>(Clock::now() - begin).count(), kAtOnce);
    EXPECT_EQ(has_ended, ends);
    may_end = true;
    later.join();
    peer.join();
    EXPECT_TRUE(test::wait_until([&] { return has_ended.load(); }, kAtOnce));
  }
}

// Callbacks that wait behind a running one are called too.
TEST(Destroyed, CallbacksThatWaitForTheirTurnAreCalled) {
  CallbackQueue queue([](const std::string& line) { ADD_FAILURE() << line; });
  std::string calls;
  for (const char name : {'a', 'b', 'c'}) queue.push([&calls, name] { calls += name; });
  queue.end();
  queue.run();
  EXPECT_EQ(calls, "abc");
  EXPECT_TRUE(queue.wait_for_end(Deadline::after(0)));
  queue.push([&calls] { calls += 'd'; });
  EXPECT_EQ(calls, "abcd");
}

// The background thread hangs in an observer, as it might in an update function.
TEST(Destroyed, WhileTheBackgroundThreadIsStuck) {
  struct Gate {
    std::atomic<bool> is_reached{false}, may_end{false}, has_ended{false};
  };
  const auto gate = std::make_shared<Gate>();
  auto options = Options::thread_rank(0, 1, make_memory_store());
  options.close_timeout = 0.5;
  options.log = [](LogLevel, std::string_view) {};
  options.observer = [gate](std::string_view point) {
    if (point != "transfer" || gate->is_reached.exchange(true)) return;
    EXPECT_TRUE(test::wait_until([&] { return gate->may_end.load(); }, 60));
    gate->has_ended = true;
  };
  auto comm = Communicator::create(options);
  std::vector<float> values(100, 1.0f);
  Work work = comm->allreduce("x", values);
  ASSERT_TRUE(test::wait_until([&] { return gate->is_reached.load(); }, kAtOnce));
  const auto begin = Clock::now();
  comm.reset();
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - begin).count(), kAtOnce);
  EXPECT_FALSE(gate->has_ended);
  gate->may_end = true;
  // The interrupted operation ends, well or with an error.
  EXPECT_TRUE(test::wait_until([&] { return work.done(); }, kAtOnce));
}

TEST(Destroyed, WhileEverybodyIsBusy) {
  for (int round = 0; round < test::repetitions(40); ++round) {
    const auto store = make_memory_store();
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; ++rank)
      ranks.emplace_back([&, rank] {
        auto comm = make_rank(rank, 2, store);
        std::vector<float> mine(500, 1.0f);
        std::atomic<bool> is_there{false};
        // The other thread only waits for this Work.
        auto work = comm->allreduce("other", mine);
        std::thread other([&] {
          is_there = true;
          try {
            work.wait();
          } catch (const Error& error) {
            EXPECT_THAT(error.code(), testing::AnyOf(ErrorCode::closed, ErrorCode::peer_left));
          }
        });
        while (!is_there) std::this_thread::yield();
        if (rank == 0) std::this_thread::sleep_for(std::chrono::microseconds(round * 10));
        comm.reset();
        other.join();
      });
    for (auto& rank : ranks) rank.join();
  }
}

// --- after a fault ------------------------------------------------------------------------------

double cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Many requests of both ranks are under way, so that answers arrive after the fault.
TEST(AfterAFault, NothingSpinsAndNothingIsLaunched) {
  std::atomic<int> broken{0};
  std::atomic<double> used{0};
  std::atomic<bool> is_armed{false};
  run_threads(
      2,
      [&](Communicator& comm) {
        std::vector<std::vector<float>> values(50, std::vector<float>(300, 1.0f));
        std::vector<Work> works;
        comm.barrier_blocking();
        is_armed = true;
        const auto expect_the_fault = [](const std::function<void()>& call) {
          try {
            call();
          } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::internal) << error.what();
          }
        };
        // A rank may learn of rank 1's fault while it submits. Then the submitting call throws.
        for (size_t i = 0; i < values.size(); ++i)
          expect_the_fault(
              [&] { works.push_back(comm.allgather(fmt::format("x{}", i), values[i])); });
        for (auto& work : works) expect_the_fault([&] { work.wait(); });
        ++broken;
        ASSERT_TRUE(test::wait_until([&] { return broken >= 2; }));
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        const double before = cpu_seconds();
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        if (comm.rank() == 0) used = cpu_seconds() - before;
      },
      [&](Options& options) {
        quiet(options);
        if (options.rank == 1)
          options.observer = [&, count = 0](std::string_view point) mutable {
            if (is_armed && point == "pack" && ++count == 3) throw std::runtime_error("oops");
          };
      });
  EXPECT_LT(used, 0.1);
}

extern "C" void count_signal(int) {}

TEST(Waiting, SignalsDoNoHarm) {
  struct sigaction action {
  }, before{};
  action.sa_handler = count_signal;  // without SA_RESTART: a signal interrupts every sleeping call
  ASSERT_EQ(::sigaction(SIGALRM, &action, &before), 0);
  const itimerval often{{0, 300}, {0, 300}}, never{};
  ::setitimer(ITIMER_REAL, &often, nullptr);
  run_threads(3, [](Communicator& comm) {
    GradientArena arena(comm, {{"w", {70'000}}});
    for (int step = 0; step < 60; ++step) {
      std::vector<float> values(5000, 1.0f);
      if (comm.rank() == step % 3) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      comm.allreduce("x", values, ReduceOp::sum).wait();
      ASSERT_EQ(values[4999], 3.0f);
      float one = 1;
      comm.allreduce_blocking("one", std::span(&one, 1), ReduceOp::sum);
      ASSERT_EQ(one, 3.0f);
      arena["w"].as<float>()[69'999] = 2;
      arena.ready("w");
      arena.wait();
      ASSERT_EQ(arena["w"].as<float>()[69'999], 2.0f);
    }
  });
  ::setitimer(ITIMER_REAL, &never, nullptr);
  ::sigaction(SIGALRM, &before, nullptr);
}

// Rank 0 waits for one Work and then computes. Its background thread must take the token (the right
// to run the engine) and do rank 0's part of the second Work, for which rank 1 waits.
TEST(Waiting, TheTokenIsHandedOn) {
  for (int round = 0; round < 5; ++round) {
    std::atomic<bool> is_done{false};
    run_threads(2, [&](Communicator& comm) {
      std::vector<float> first(1000, 1.0f), second(200'000, 1.0f);
      Work one = comm.allreduce("first", first, ReduceOp::sum);
      if (comm.rank() == 0) {
        Work two = comm.allreduce("second", second, ReduceOp::sum);
        one.wait();
        EXPECT_TRUE(test::wait_until([&] { return is_done.load(); }))
            << "rank 1's second Work waited for rank 0's next call";
        two.wait();
      } else {
        one.wait();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        comm.allreduce("second", second, ReduceOp::sum).wait();
        is_done = true;
      }
      EXPECT_EQ(second[199'999], 2.0f);
    });
  }
}

}  // namespace
}  // namespace tutti
