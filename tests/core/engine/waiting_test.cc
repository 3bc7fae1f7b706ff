// What waits for ranks that are late, or for ever: limits, errors that say who and why, and where
// the time of the waiting went.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <thread>

#include "tests/support/ranks.h"
#include "tutti/core/arena.h"
#include "tutti/core/communicator.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

class Waiting : public testing::TestWithParam<const char*> {
 protected:
  void run(int size, const test::RankFunction& body, const test::Tune& tune = {}) {
    if (std::string(GetParam()) == "memory") return test::run_threads(size, body, tune);
    test::run_processes(size, body, [&](Options& options) {
      options.backend = GetParam();
      if (tune) tune(options);
    });
  }
  bool shares_memory() const { return std::string(GetParam()) != "tcp"; }
};
INSTANTIATE_TEST_SUITE_P(Backends, Waiting, testing::Values("memory", "shm", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

template <class Function>
Error error_of(Function&& function, double most_seconds) {
  const auto since = Clock::now();
  try {
    function();
  } catch (const Error& error) {
    EXPECT_LT(std::chrono::duration<double>(Clock::now() - since).count(), most_seconds);
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return {ErrorCode::internal, "nothing"};
}

// --- TUTTI_OPERATION_TIMEOUT --------------------------------------------------------------------

constexpr double kLimit = 1.5;
constexpr auto kLate = milliseconds(5000);  // and gone then, which is another error
void limit(Options& options) { options.operation_timeout = kLimit; }

void expect_overdue(const Error& error, int late, const std::string& tensor,
                    const std::string& last) {
  EXPECT_EQ(error.code(), ErrorCode::timeout) << error.what();
  EXPECT_EQ(error.rank(), late) << error.what();
  EXPECT_EQ(error.tensor(), tensor);
  EXPECT_THAT(error.what(),
              AllOf(HasSubstr("TUTTI_OPERATION_TIMEOUT=1.5"),
                    HasSubstr(fmt::format("waits for rank {}. Rank {} is alive", late, late)),
                    HasSubstr(last)));
}

TEST_P(Waiting, ARankThatNeverSubmitsIsNamedWhenTheTimeIsUp) {
  // Each in turn: rank 0 is the one that matches names.
  for (const int late : {0, 2}) {
    run(
        3,
        [&](Communicator& comm) {
          std::vector<float> values(1000, 1.0f);
          comm.allreduce("before", values).wait();
          if (comm.rank() == late) {
            std::this_thread::sleep_for(kLate);
            return;
          }
          expect_overdue(error_of([&] { comm.allreduce("x", values).wait(); }, kLimit + 3), late,
                         "x", "last submitted \"before\"");
        },
        limit);
  }
}

TEST_P(Waiting, ALateRankInAReplayedStepIsNamedWhenTheTimeIsUp) {
  run(
      2,
      [](Communicator& comm) {
        std::vector<float> a(1000, 1.0f), b(1000, 1.0f);
        for (int step = 0; step < 10; ++step) {
          comm.allreduce("a", a).wait();
          comm.allreduce("b", b).wait();
        }
        if (comm.rank() == 1) {
          std::this_thread::sleep_for(kLate);
          return;
        }
        expect_overdue(error_of([&] { comm.allreduce("a", a).wait(); }, kLimit + 3), 1, "a",
                       "last submitted \"b\"");
      },
      limit);
}

TEST_P(Waiting, ALateRankInABlockingCallIsNamedWhenTheTimeIsUp) {
  run(
      2,
      [&](Communicator& comm) {
        std::vector<float> values(10, 1.0f);
        for (int step = 0; step < 3; ++step) comm.allreduce_blocking("before", values);
        if (comm.rank() == 1) {
          std::this_thread::sleep_for(kLate);
          return;
        }
        expect_overdue(error_of([&] { comm.allreduce_blocking("x", values); }, kLimit + 3), 1, "x",
                       shares_memory() ? "after 3 blocking calls" : "before");
      },
      limit);
}

// --- what holds nothing up ----------------------------------------------------------------------

// A callback of rank 1 takes longer than the time after which a rank counts as silent. Meanwhile
// rank 1 takes part in everything else, whether or not a thread of it waits.
TEST_P(Waiting, ACallbackThatTakesLongHoldsUpNoOtherRank) {
  for (const bool waits : {false, true})
    run(
        2,
        [&](Communicator& comm) {
          std::vector<float> a(1000, 1.0f), b(300'000, 1.0f), c(10, 1.0f);
          if (comm.rank() == 0) {
            comm.barrier_blocking();
            comm.allreduce("a", a).wait();
            const auto since = Clock::now();
            comm.allreduce("b", b).wait();
            EXPECT_LT(std::chrono::duration<double>(Clock::now() - since).count(), 3);
            std::this_thread::sleep_for(milliseconds(4500));
            comm.allreduce("c", c).wait();
            return;
          }
          std::atomic<bool> is_over{false};
          comm.allreduce("a", a).then([&](std::exception_ptr) {
            std::this_thread::sleep_for(milliseconds(4500));
            is_over = true;
          });
          comm.barrier_blocking();  // rank 0 submits only now, so the Work was not over before
          const Work other = comm.allreduce("b", b);
          if (waits) comm.allreduce("c", c).wait();
          while (!is_over) std::this_thread::sleep_for(milliseconds(5));
          EXPECT_TRUE(other.done());
          if (!waits) comm.allreduce("c", c).wait();
        },
        [](Options& options) { options.peer_timeout = 3; });
}

// A thread of rank 0 waits for what rank 1 submits only after a blocking call, which another thread
// of rank 0 makes: it must get the token of the one that waits.
TEST_P(Waiting, ABlockingCallPassesAThreadThatWaits) {
  run(2, [](Communicator& comm) {
    std::vector<float> x(1000, 1.0f), y(10, 1.0f);
    for (int round = 0; round < 20; ++round) {
      std::vector<std::thread> waiters;
      if (comm.rank() == 0)
        for (int i = 0; i < 3; ++i)
          waiters.emplace_back([&comm, values = x, i]() mutable {
            comm.allreduce(fmt::format("x{}", i), values).wait();
          });
      std::this_thread::sleep_for(milliseconds(2));
      const auto since = Clock::now();
      comm.allreduce_blocking("y", y);
      EXPECT_LT(std::chrono::duration<double>(Clock::now() - since).count(), 1.0);
      if (comm.rank() == 1)
        for (int i = 0; i < 3; ++i) comm.allreduce(fmt::format("x{}", i), x).wait();
      for (auto& waiter : waiters) waiter.join();
    }
  });
}

// --- what never meets ---------------------------------------------------------------------------

TEST_P(Waiting, ABlockingAndAnAsynchronousCallOfOneNameEndWithAnErrorThatSaysSo) {
  run(2, [&](Communicator& comm) {
    float one = 1;
    const auto call = [&] {
      if (comm.rank() == 0)
        comm.allreduce_blocking("x", std::span(&one, 1), ReduceOp::sum);
      else
        comm.allreduce("x", std::span(&one, 1), ReduceOp::sum).wait();
    };
    if (!shares_memory()) {
      call();  // there both are matched by name
      EXPECT_EQ(one, 2.0f);
      return;
    }
    const auto error = error_of(call, 4);
    EXPECT_EQ(error.code(), ErrorCode::mismatch) << error.what();
    EXPECT_EQ(error.tensor(), "x");
    EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 0 waits in a blocking call"),
                                    HasSubstr("rank 1 for an asynchronous one"),
                                    HasSubstr("Call it the same way on all ranks")));
  });
}

TEST_P(Waiting, ABlockingCallAgainstARankThatHasJoinedEndsWithAnErrorThatSaysSo) {
  if (!shares_memory()) GTEST_SKIP() << "there it takes part with nothing";
  run(2, [](Communicator& comm) {
    float one = 1;
    const auto error = error_of(
        [&] {
          if (comm.rank() == 0)
            comm.allreduce_blocking("x", std::span(&one, 1));
          else
            comm.join().wait();
        },
        4);
    EXPECT_EQ(error.code(), ErrorCode::mismatch) << error.what();
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("rank 0 waits in a blocking call"),
                      HasSubstr("rank 1 has joined (is out of data) and will not make "
                                "it: join() stands in for asynchronous allreduces "
                                "only. Call allreduce(...).wait() where ranks may "
                                "have joined")));
  });
}

struct BlockingKind {
  const char* name;
  void (*call)(Communicator&, const std::vector<float>& input, std::vector<float>& output);
};
// Four elements of each of two ranks; root is the one that has joined.
constexpr BlockingKind kBlockingKinds[] = {
    {"reduce", [](auto& comm, auto& in, auto& out) { comm.reduce_blocking("x", in, out, 1); }},
    {"broadcast", [](auto& comm, auto&, auto& out) { comm.broadcast_blocking("x", out, 1); }},
    {"allgather", [](auto& comm, auto& in, auto& out) { comm.allgather_blocking("x", in, out); }},
    {"gather", [](auto& comm, auto& in, auto& out) { comm.gather_blocking("x", in, out, 1); }},
    {"scatter", [](auto& comm, auto& in, auto& out) { comm.scatter_blocking("x", in, out, 1); }},
    {"reduce_scatter",
     [](auto& comm, auto& in, auto& out) {
       comm.reduce_scatter_blocking("x", in, std::span(out).first(2), ReduceOp::sum);
     }},
    {"alltoall", [](auto& comm, auto& in, auto& out) { comm.alltoall_blocking("x", in, out); }},
    {"barrier", [](auto& comm, auto&, auto&) { comm.barrier_blocking(); }},
};

// Each ends with an error, and nothing was written. Where ranks share memory the one that has
// joined hears it too, for the two would wait for each other; elsewhere it goes on waiting in
// join().
void expect_refused_beside_a_joined_rank(Communicator& comm, const BlockingKind& kind,
                                         bool shares_memory) {
  if (comm.rank() == 1 && !shares_memory) return comm.join().wait();
  const std::vector<float> input(4, 1);
  std::vector<float> output(std::string_view(kind.name) == "allgather" ? 8 : 4, 7);
  const auto before = output;
  const auto error = error_of(
      [&] {
        if (comm.rank() == 0)
          kind.call(comm, input, output);
        else
          comm.join().wait();
      },
      10);
  EXPECT_EQ(error.code(), ErrorCode::mismatch) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("rank 1 has joined (is out of data)"));
  EXPECT_EQ(output, before) << kind.name;
  if (shares_memory) return;
  EXPECT_THAT(error.what(), HasSubstr(fmt::format("{} cannot run while", kind.name)));
  comm.join().wait();
}

// Every kind in a group and a thread of its own, so that they wait at the same time.
TEST_P(Waiting, EveryBlockingKindBesideARankThatHasJoinedEndsWithAnErrorThatSaysSo) {
  run(2, [&](Communicator& comm) {
    std::vector<std::jthread> threads;
    for (const auto& kind : kBlockingKinds)
      threads.emplace_back([this, &kind, group = comm.split(0)] {
        expect_refused_beside_a_joined_rank(*group, kind, shares_memory());
      });
    threads.clear();
    comm.barrier("all are done").wait();
  });
}

// --- reports ------------------------------------------------------------------------------------

TEST_P(Waiting, ReportsSayWhereTheLateRankIs) {
  std::mutex mutex;
  int reports = 0;
  run(
      2,
      [&](Communicator& comm) {
        std::vector<float> a(1000, 1.0f), b(1000, 1.0f);
        for (int step = 0; step < 10; ++step) {
          comm.allreduce("a", a).wait();
          comm.allreduce("b", b).wait();
        }
        if (comm.rank() == 1) std::this_thread::sleep_for(milliseconds(1400));
        comm.allreduce("a", a).wait();
        const std::lock_guard lock(mutex);
        if (comm.rank() == 0) {
          EXPECT_EQ(reports, 1);
        }
      },
      [&](Options& options) {
        options.stall_warning = 0.8;
        options.log = [&, rank = options.rank](LogLevel, std::string_view line) {
          const std::lock_guard lock(mutex);
          ++reports;
          EXPECT_THAT(std::string(line), testing::Not(HasSubstr("submitted \"\"")));
          EXPECT_THAT(std::string(line),
                      HasSubstr("Rank 1 is alive and last submitted \"b\"; it is late."));
          EXPECT_EQ(rank, 0);
        };
      });
}

// --- what is counted when a Work is done --------------------------------------------------------

// The background thread ends "x", and then stands still in the update of an arena, within one step:
// this thread sees "x" done, and counted.
TEST(Statistics, CountAWorkBeforeAnyThreadSeesItDone) {
  struct Gate {
    std::atomic<bool> is_reached{false}, may_end{false};
    void stand_still() {
      is_reached = true;
      const auto deadline = Deadline::after(60);
      while (!may_end && !deadline.passed()) std::this_thread::yield();
    }
    bool await() const {
      const auto deadline = Deadline::after(60);
      while (!is_reached && !deadline.passed()) std::this_thread::yield();
      return is_reached;
    }
  };
  Gate first, update;
  auto options = Options::thread_rank(0, 1, make_memory_store());
  options.observer = [&](std::string_view point) {
    if (point == "transfer" && !first.is_reached) first.stand_still();
  };
  const auto comm = Communicator::create(options);
  GradientArena arena(
      *comm, {{"array", Shape{100}}}, {},
      [](void* gate, int64_t, int64_t, const std::byte*) {
        static_cast<Gate*>(gate)->stand_still();
      },
      &update);
  std::vector<float> values(100, 1.0f), others(100, 1.0f);
  Work before = comm->allreduce("before", others);
  ASSERT_TRUE(first.await());
  Work work = comm->allreduce("x", values);
  arena.ready("array");
  first.may_end = true;
  ASSERT_TRUE(update.await());
  EXPECT_TRUE(before.done());
  EXPECT_TRUE(work.done());
  EXPECT_EQ(comm->statistics().operations, 2u);
  update.may_end = true;
  arena.wait();
}

// --- where the time went ------------------------------------------------------------------------

TEST_P(Waiting, WaitingForALateRankIsSkewAndNotExposed) {
  for (const bool is_blocking : {false, true}) {
    run(2, [&](Communicator& comm) {
      // Long beside the time for which a blocking call spins, which is not counted and takes some
      // milliseconds where other programs have the core.
      constexpr int kSteps = 10;
      constexpr auto kLate = milliseconds(80);
      std::vector<float> values(1000, 1.0f);
      const auto step = [&] {
        if (is_blocking)
          comm.allreduce_blocking("x", values);
        else
          comm.allreduce("x", values).wait();
      };
      for (int i = 0; i < 5; ++i) step();
      const auto before = comm.statistics();
      for (int i = 0; i < kSteps; ++i) {
        if (comm.rank() == 1) std::this_thread::sleep_for(kLate);
        step();
      }
      const auto after = comm.statistics();
      if (comm.rank() == 1) return;
      const double skew = after.skew_seconds - before.skew_seconds;
      const double exposed = after.exposed_seconds - before.exposed_seconds;
      const double waited = after.wait_seconds - before.wait_seconds;
      EXPECT_GT(skew, 0.7 * std::chrono::duration<double>(kSteps * kLate).count())
          << "of " << waited;
      EXPECT_LT(exposed, 0.25 * skew) << "of " << waited;
      EXPECT_GT(waited, 0.9 * (skew + exposed));
    });
  }
}

TEST_P(Waiting, BlockingCallsAreCounted) {
  run(2, [](Communicator& comm) {
    std::vector<float> values(2000, 1.0f);
    comm.allreduce_blocking("x", values);
    const auto before = comm.statistics();
    for (int i = 0; i < 10; ++i) comm.allreduce_blocking("x", values);
    const auto after = comm.statistics();
    EXPECT_EQ(after.operations - before.operations, 10u);
    EXPECT_EQ(after.tensors - before.tensors, 10u);
    EXPECT_GE(after.data_messages - before.data_messages, 10u);
    EXPECT_GE(after.data_bytes - before.data_bytes, 10u * 8000u);
  });
}

// Also where another thread has begun a long step since.
TEST(BlockingCalls, AreCountedWhileAnotherThreadDrives) {
  std::atomic<bool> holds{false}, drives{false};
  const auto tune = [&](Options& options) {
    if (options.rank != 0) return;
    options.observer = [&](std::string_view) {
      for (; holds; std::this_thread::sleep_for(milliseconds(1))) drives = true;
    };
  };
  const auto body = [&](Communicator& comm) {
    std::vector<float> values(2000, 1.0f), more(2000, 1.0f);
    comm.allreduce("y", more).wait();
    // Several rounds, because the background thread publishes too if it happens to step.
    for (int round = 0; round < 8; ++round) {
      const auto before = comm.statistics();
      for (int i = 0; i < 10; ++i) comm.allreduce_blocking("x", values);
      drives = false;
      if (comm.rank() == 0) holds = true;
      auto work = comm.allreduce("y", more);
      std::thread driver([&] { work.wait(); });
      if (comm.rank() == 0) {
        const auto limit = Deadline::after(20);
        while (!drives && !limit.passed()) std::this_thread::sleep_for(milliseconds(1));
        EXPECT_TRUE(drives);
        EXPECT_EQ(comm.statistics().operations - before.operations, 10u);
        holds = false;
      }
      driver.join();
    }
  };
  test::run_threads(2, body, tune);
}

}  // namespace
}  // namespace tutti
