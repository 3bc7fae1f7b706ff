// What is thrown while a thread is the engine, and what ends it while others wait: every rank hears
// of it at once, and nothing is left behind.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/time.h>
#include <time.h>

#include <atomic>
#include <csignal>
#include <mutex>
#include <new>
#include <thread>

#include "tests/support/ranks.h"
#include "tutti/backends/store.h"
#include "tutti/core/arena.h"

namespace tutti {
namespace {

using test::run_threads;
using testing::HasSubstr;

constexpr double kAtOnce = 2;  // seconds; what must not happen takes close_timeout or for ever

void quiet(Options& options) {
  options.close_timeout = 10;
  options.log = [](LogLevel, std::string_view) {};
}

// The Error that `call` throws within the time that "at once" is.
Error error_of(const std::function<void()>& call) {
  const auto begin = Clock::now();
  try {
    call();
  } catch (const Error& error) {
    EXPECT_LT(std::chrono::duration<double>(Clock::now() - begin).count(), kAtOnce) << error.what();
    return error;
  }
  ADD_FAILURE() << "no error";
  return Error(ErrorCode::internal, "none");
}

struct Thrown {
  const char* what;
  std::function<void()> raise;
  ErrorCode code;
  const char* text;
};

std::vector<Thrown> kinds() {
  return {{"runtime_error", [] { throw std::runtime_error("oops"); }, ErrorCode::internal, "oops"},
          {"bad_alloc", [] { throw std::bad_alloc(); }, ErrorCode::out_of_memory,
           "it ran out of memory"},
          {"int", [] { throw 7; }, ErrorCode::internal, "no std::exception"},
          {"Error", [] { throw Error(ErrorCode::unavailable, "no card"); }, ErrorCode::unavailable,
           "no card"}};
}

// An observer stands for all that may throw at its point: ours, the system's, the user's.
void throw_at(const std::string& point, const Thrown& thrown, int thrower, bool waits) {
  SCOPED_TRACE(fmt::format("{} at {} on rank {}, which {}", thrown.what, point, thrower,
                           waits ? "waits" : "does not wait"));
  std::atomic<bool> has_thrown{false};
  run_threads(
      2,
      [&](Communicator& comm) {
        std::vector<float> a(1000, 1.0f), b(1000, 1.0f);
        const auto begin = Clock::now();
        const auto is_late = [&] {
          return std::chrono::duration<double>(Clock::now() - begin).count() > kAtOnce;
        };
        // One of the calls may have been through when it was thrown, but then a later one is not.
        std::optional<Error> error;
        for (int i = 0; !error && !is_late(); ++i) {
          try {
            Work first = comm.allreduce(fmt::format("a{}", i), a);
            Work second = comm.allreduce(fmt::format("b{}", i), b);
            while (!waits && !(first.done() && second.done()) && !is_late())
              std::this_thread::sleep_for(std::chrono::microseconds(100));
            first.wait();
            second.wait();
          } catch (const Error& caught) {
            error = caught;
          }
        }
        ASSERT_TRUE(error);
        EXPECT_EQ(error->code(), thrown.code) << error->what();
        EXPECT_THAT(error->what(), HasSubstr(thrown.text));
        EXPECT_THAT(error->what(), HasSubstr(fmt::format("rank {} cannot go on", thrower)));
        EXPECT_LT(std::chrono::duration<double>(Clock::now() - begin).count(), kAtOnce);
        EXPECT_EQ(error_of([&] { comm.allreduce("d", a).wait(); }).code(), thrown.code);
        EXPECT_EQ(error_of([&] { comm.allreduce_blocking("e", a); }).code(), thrown.code);
      },
      [&](Options& options) {
        quiet(options);
        if (options.rank == thrower)
          options.observer = [&](std::string_view here) {
            if (here == point && !has_thrown.exchange(true)) thrown.raise();
          };
      });
}

TEST(Thrown, InTheEngineBreaksTheCommunicatorOnEveryRank) {
  for (const char* point : {"negotiation", "pack", "transfer", "idle"})
    for (const auto& thrown : kinds())
      for (const int thrower : {0, 1})
        for (const bool waits : {true, false})
          if (point != std::string("idle") || !waits) throw_at(point, thrown, thrower, waits);
}

// Rank 1 has joined when the answer comes that locks a plan: while it handles that answer it
// launches the plan's first bucket with a veto, and fails. That is its own failure, whatever it
// throws, and not a message of rank 0's that cannot be.
TEST(Thrown, WhileAnswersAreHandledIsNotTheSendersDoing) {
  auto thrown = kinds();
  thrown.push_back({"an Error that damaged messages have too",
                    [] { throw Error(ErrorCode::corrupt_data, "a damaged file"); },
                    ErrorCode::corrupt_data, "a damaged file"});
  for (const auto& kind : thrown) {
    SCOPED_TRACE(kind.what);
    std::atomic<bool> is_armed{false}, has_thrown{false};
    run_threads(
        2,
        [&](Communicator& comm) {
          std::vector<float> values(1000, 1.0f);
          const auto error = error_of([&] {
            for (int step = 0; step < 3; ++step) {
              // Both requests of rank 1 have come when rank 0 asks too, and answers with the plan.
              Work work;
              if (comm.rank() == 1) work = comm.allreduce("x", values);
              if (comm.rank() == 1 && step == 2) {
                is_armed = true;
                comm.join();
              }
              if (comm.rank() == 0) {
                std::this_thread::sleep_for(std::chrono::milliseconds(50));
                work = comm.allreduce("x", values);
              }
              work.wait();
            }
            comm.allreduce("y", values).wait();
          });
          EXPECT_TRUE(has_thrown);
          EXPECT_EQ(error.code(), kind.code) << error.what();
          EXPECT_THAT(error.what(), HasSubstr(kind.text));
          EXPECT_THAT(error.what(), HasSubstr("rank 1 cannot go on"));
          EXPECT_THAT(error.what(), testing::Not(HasSubstr("a message that cannot be")));
        },
        [&](Options& options) {
          quiet(options);
          options.replay_after = 3;
          if (options.rank == 1)
            options.observer = [&](std::string_view point) {
              if (is_armed && point == "pack" && !has_thrown.exchange(true)) kind.raise();
            };
        });
  }
}

// Every time, so that the end itself meets it too.
TEST(Thrown, AgainAndAgain) {
  run_threads(
      2,
      [&](Communicator& comm) {
        std::vector<float> a(1000, 1.0f);
        EXPECT_EQ(error_of([&] { comm.allreduce("a", a).wait(); }).code(), ErrorCode::internal);
        EXPECT_EQ(error_of([&] { comm.allreduce("a", a).wait(); }).code(), ErrorCode::internal);
      },
      [](Options& options) {
        quiet(options);
        options.observer = [](std::string_view point) {
          if (point != "rendezvous" && point != "connected") throw std::runtime_error("again");
        };
      });
}

TEST(Thrown, InALogSink) {
  run_threads(
      2,
      [&](Communicator& comm) {
        std::vector<float> a(100, 1.0f);
        comm.allreduce("a", a).then([](std::exception_ptr) { throw std::runtime_error("oops"); });
        comm.allreduce("b", a, ReduceOp::sum).wait();
        EXPECT_EQ(a[0], 2.0f);
        comm.barrier_blocking();
      },
      [](Options& options) {
        options.log = [](LogLevel, std::string_view) { throw std::runtime_error("full"); };
      });
}

// An update is the user's code in the middle of a reduction: on a thread that waits, on the one in
// the background, and within a blocking call.
void throw_in_update(const std::string& backend) {
  SCOPED_TRACE(backend);
  struct Update {
    bool throws;
    static void apply(void* self, int64_t, int64_t, const std::byte*) {
      if (static_cast<Update*>(self)->throws) throw std::runtime_error("no step today");
    }
  };
  const auto body = [](Communicator& comm) {
    Update update{comm.rank() == 1};
    GradientArena arena(comm, {{"w", {300'000}}, {"b", {1000}}}, {}, &Update::apply, &update);
    // Where each rank updates all after the reduction, the other one is through with a step.
    const auto error = error_of([&] {
      for (int step = 0; step < 2; ++step) {
        for (const char* name : {"w", "b"}) arena.ready(name);
        arena.wait();
      }
    });
    EXPECT_EQ(error.code(), ErrorCode::internal);
    EXPECT_THAT(error.what(), HasSubstr("no step today"));
    EXPECT_THAT(error.what(), HasSubstr("rank 1"));
  };
  run_threads(2, body, [&](Options& options) {
    quiet(options);
    if (!backend.empty()) options.algorithms = "allreduce:0-inf=" + backend;
  });
}

TEST(Thrown, InAFusedUpdate) {
  throw_in_update("");
  throw_in_update("ring");  // each rank updates everything, after the reduction
}

// --- destroyed while others wait ----------------------------------------------------------------

std::unique_ptr<Communicator> make_rank(int rank, int size, const std::shared_ptr<Store>& store,
                                        const test::Tune& tune = quiet) {
  auto options = Options::thread_rank(rank, size, store);
  tune(options);
  return Communicator::create(options);
}

// Two ranks; `body` gets rank 0's, which it may destroy, while rank 1 stays until it is done.
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
          const auto error = error_of([&] { work.wait(); });
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
        const auto error = error_of([&] { used->allreduce_blocking("x", std::span(&value, 1)); });
        EXPECT_EQ(error.code(), ErrorCode::closed);
      });
      while (!is_there) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(sleep_ms));
      comm.reset();
      waiter.join();
    });
}

// By a callback, on whichever thread runs it: the one in the background, or one that waits.
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
      EXPECT_EQ(error_of([&] { never.wait(); }).code(), ErrorCode::closed);
    }
    const auto deadline = Deadline::after(kAtOnce);
    while (!is_destroyed && !deadline.passed()) std::this_thread::yield();
    EXPECT_TRUE(is_destroyed);
    EXPECT_EQ(error_of([&] { never.wait(); }).code(), ErrorCode::closed);
    peer.join();
    never = Work();
    const auto gone = Deadline::after(5);
    while (seen.use_count() > 1 && !gone.passed()) std::this_thread::yield();
    EXPECT_EQ(seen.use_count(), 1) << "its end was not seen through: the engine lives on";
  }
}

// A callback that runs is waited for, for as long as close_timeout says.
TEST(Destroyed, WhileACallbackRuns) {
  for (const bool ends : {true, false}) {
    auto options = Options::thread_rank(0, 1, make_memory_store());
    options.close_timeout = 0.5;
    options.log = [](LogLevel, std::string_view) {};
    auto comm = Communicator::create(options);
    std::atomic<bool> runs{false}, may_end{false}, has_ended{false};
    float value = 1;
    comm->allreduce("x", std::span(&value, 1)).then([&](std::exception_ptr) {
      runs = true;
      const auto deadline = Deadline::after(5);
      while (!may_end && !deadline.passed()) std::this_thread::yield();
      has_ended = true;
    });
    const auto start = Deadline::after(kAtOnce);
    while (!runs && !start.passed()) std::this_thread::yield();
    EXPECT_TRUE(runs);
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
    const auto end = Deadline::after(kAtOnce);
    while (!has_ended && !end.passed()) std::this_thread::yield();
    EXPECT_TRUE(has_ended);
  }
}

// The background thread is in an observer, as it would be in an update, and does not come back.
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
    const auto deadline = Deadline::after(5);
    while (!gate->may_end && !deadline.passed()) std::this_thread::yield();
    gate->has_ended = true;
  };
  auto comm = Communicator::create(options);
  std::vector<float> values(100, 1.0f);
  Work work = comm->allreduce("x", values);
  const auto start = Deadline::after(kAtOnce);
  while (!gate->is_reached && !start.passed()) std::this_thread::yield();
  ASSERT_TRUE(gate->is_reached);
  const auto begin = Clock::now();
  comm.reset();
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - begin).count(), kAtOnce);
  EXPECT_FALSE(gate->has_ended);
  gate->may_end = true;
  // What it was in the middle of ends one way or the other.
  const auto end = Deadline::after(kAtOnce);
  while (!work.done() && !end.passed()) std::this_thread::yield();
  EXPECT_TRUE(work.done());
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
        // It only waits: what it waits for was submitted before.
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

// --- and then -----------------------------------------------------------------------------------

double cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// With requests of many ranks' making on their way, so that answers come behind the fault.
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
        for (size_t i = 0; i < values.size(); ++i)
          works.push_back(comm.allgather(fmt::format("x{}", i), values[i]));
        for (auto& work : works) {
          try {
            work.wait();
          } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::internal) << error.what();
          }
        }
        ++broken;
        while (broken < 2) std::this_thread::yield();
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
  action.sa_handler = count_signal;  // without SA_RESTART: every call that sleeps is interrupted
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

// Rank 0 waits for one Work and then computes: its background thread must take the token and do
// rank 0's part of the second, for which rank 1 waits meanwhile.
TEST(Waiting, TheTokenIsHandedOn) {
  for (int round = 0; round < 5; ++round) {
    std::atomic<bool> is_done{false};
    run_threads(2, [&](Communicator& comm) {
      std::vector<float> first(1000, 1.0f), second(200'000, 1.0f);
      Work one = comm.allreduce("first", first, ReduceOp::sum);
      if (comm.rank() == 0) {
        Work two = comm.allreduce("second", second, ReduceOp::sum);
        one.wait();
        const auto deadline = Deadline::after(5);
        while (!is_done && !deadline.passed()) std::this_thread::yield();  // it computes
        EXPECT_TRUE(is_done) << "rank 1's second Work waited for rank 0's next call";
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
