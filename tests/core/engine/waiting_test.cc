// Threads and processes wait for late ranks, or for ever. The tests cover what must not hold up
// other ranks, the errors that name the rank and the reason, and the statistics of the waiting
// time. tests/core/node/limits_test.cc and the simulation show without waiting which rank is named
// and when, in any order of events.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <iostream>
#include <mutex>
#include <optional>
#include <thread>

#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/wait_until.h"
#include "tutti/core/arena.h"
#include "tutti/core/communicator.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;
using test::error_of;
using testing::AllOf;
using testing::HasSubstr;

void run_over(const std::string& backend, int size, const test::RankFunction& body,
              const test::Tune& tune = {}) {
  if (backend == "memory") return test::run_threads(size, body, tune);
  test::run_processes(size, body, [&](Options& options) {
    options.backend = backend;
    if (tune) tune(options);
  });
}

class Waiting : public testing::TestWithParam<const char*> {
 protected:
  void run(int size, const test::RankFunction& body, const test::Tune& tune = {}) {
    run_over(GetParam(), size, body, tune);
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, Waiting, testing::Values("memory", "shm", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

// --- TUTTI_OPERATION_TIMEOUT --------------------------------------------------------------------

TEST(OperationTimeout, NamesALateRankInAReplayedStepOverSockets) {
  constexpr double kLimit = 2;
  static constexpr auto kLate = milliseconds(6000);  // rank 2 ends then: another error
  run_over(
      "tcp", 3,
      [](Communicator& comm) {
        std::vector<float> values(1000, 1.0f);
        for (int i = 0; i < 10; ++i) comm.allreduce("x", values).wait();
        if (comm.rank() == 2) {
          std::this_thread::sleep_for(kLate);
          return;
        }
        const Error error = error_of([&] { comm.allreduce("x", values).wait(); }, kLimit + 2);
        EXPECT_EQ(error.code(), ErrorCode::timeout) << error.what();
        EXPECT_EQ(error.rank(), 2) << error.what();
        EXPECT_EQ(error.tensor(), "x");
        EXPECT_THAT(error.what(), AllOf(HasSubstr("TUTTI_OPERATION_TIMEOUT=2 s"),
                                        HasSubstr("waits for rank 2. Rank 2 is alive"),
                                        HasSubstr("last submitted \"x\"")));
      },
      [](Options& options) { options.operation_timeout = kLimit; });
}

// --- long callbacks -----------------------------------------------------------------------------

// A callback of rank 1 blocks until rank 0 has done everything else and rank 1's own "b" has ended,
// and then for the time `more`. Meanwhile rank 1 takes part in every operation, whether or not a
// thread of it waits.
void expect_that_a_callback_holds_nothing_up(const char* backend, bool waits, milliseconds more) {
  SCOPED_TRACE(backend);
  std::atomic<bool> is_through{false}, has_ended{false}, is_over{false};
  test::run_threads(
      2,
      [&](Communicator& comm) {
        std::vector<float> a(1000, 1.0f), b(300'000, 1.0f), c(10, 1.0f);
        if (comm.rank() == 0) {
          comm.barrier_blocking();
          comm.allreduce("a", a).wait();
          comm.allreduce("b", b).wait();
          if (waits) comm.allreduce("c", c).wait();
          EXPECT_FALSE(is_over);
          is_through = true;
          if (!waits) comm.allreduce("c", c).wait();
          return;
        }
        comm.allreduce("a", a).then([&](std::exception_ptr) {
          test::wait_until([&] { return is_through && has_ended; }, 10);
          EXPECT_TRUE(is_through) << "rank 0 waited for the callback";
          EXPECT_TRUE(has_ended) << "b of rank 1 waited for the callback";
          std::this_thread::sleep_for(more);
          is_over = true;
        });
        comm.barrier_blocking();  // rank 0 submits only after this barrier, so "a" was not done
                                  // before
        const Work other = comm.allreduce("b", b);
        if (waits) comm.allreduce("c", c).wait();
        while (!is_over) {
          has_ended = other.done();
          std::this_thread::sleep_for(milliseconds(1));
        }
        if (!waits) comm.allreduce("c", c).wait();
      },
      [&](Options& options) {
        options.backend = backend;
        options.peer_timeout = 3;
      });
}

TEST(LongCallbacks, HoldUpNoOtherRank) {
  for (const char* backend : {"memory", "tcp"})
    for (const bool waits : {false, true})
      expect_that_a_callback_holds_nothing_up(backend, waits, milliseconds(0));
}

// A rank whose callback runs longer than TUTTI_PEER_TIMEOUT still answers.
TEST(LongCallbacks, AreNotSilence) {
  expect_that_a_callback_holds_nothing_up("tcp", false, milliseconds(4500));
}

// Threads of rank 0 wait for operations that rank 1 submits only after a blocking call. Another
// thread of rank 0 makes that call. It must get the token (the right to run the engine) from a
// waiting thread.
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

// --- calls that never match ---------------------------------------------------------------------

void blocking_and_asynchronous(Communicator& comm, float& one) {
  if (comm.rank() == 0)
    comm.allreduce_blocking("x", std::span(&one, 1), ReduceOp::sum);
  else
    comm.allreduce("x", std::span(&one, 1), ReduceOp::sum).wait();
}

TEST(NeverMeeting, ABlockingAndAnAsynchronousCallOfOneNameMeetOverSockets) {
  run_over("tcp", 2, [](Communicator& comm) {
    float one = 1;
    blocking_and_asynchronous(comm, one);  // over sockets both are matched by name
    EXPECT_EQ(one, 2.0f);
  });
}

struct BlockingKind {
  const char* name;
  void (*call)(Communicator&, const std::vector<float>& input, std::vector<float>& output);
};
// The calls use four elements on each of two ranks. The root is the rank that has joined.
constexpr BlockingKind kBlockingKinds[] = {
    {"allreduce", [](auto& comm, auto& in, auto& out) { comm.allreduce_blocking("x", in, out); }},
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

// Each call ends with an error and writes nothing. Where ranks share memory, join() fails with the
// same error, for the two ranks would wait for each other. Elsewhere the joined rank goes on
// waiting in join().
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

// Every kind has its own group and thread, so that the calls wait at the same time. Over sockets an
// allreduce is left out: it is matched by name, and a joined rank takes part in it.
TEST(NeverMeeting, EveryBlockingKindBesideARankThatHasJoinedEndsWithAnErrorThatSaysSo) {
  for (const std::string backend : {"shm", "tcp"})
    run_over(backend, 2, [&](Communicator& comm) {
      std::vector<std::jthread> threads;
      for (const auto& kind : kBlockingKinds) {
        if (backend == "tcp" && std::string_view(kind.name) == "allreduce") continue;
        threads.emplace_back([&backend, &kind, group = comm.split(0)] {
          expect_refused_beside_a_joined_rank(*group, kind, backend == "shm");
        });
      }
      threads.clear();
      comm.barrier("all are done").wait();
    });
}

// --- statistics of a finished Work --------------------------------------------------------------

// The background thread finishes "x" and then blocks in the update of an arena, within one step of
// the engine. This thread must see "x" done and already counted.
TEST(Statistics, CountAWorkBeforeAnyThreadSeesItDone) {
  struct Gate {
    std::atomic<bool> is_reached{false}, may_end{false};
    void stand_still() {
      is_reached = true;
      EXPECT_TRUE(test::wait_until([&] { return may_end.load(); }, 60));
    }
    bool await() const {
      return test::wait_until([&] { return is_reached.load(); }, 60);
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

// --- waiting time -------------------------------------------------------------------------------

TEST_P(Waiting, WaitingForALateRankIsSkewAndNotExposed) {
  for (const bool is_blocking : {false, true}) {
    run(2, [&](Communicator& comm) {
      // Long compared with the time for which a blocking call spins. That time is not counted, and
      // takes some milliseconds if other programs use the core.
      constexpr int kSteps = 5;
      constexpr auto kLate = milliseconds(80);
      std::vector<float> values(1000, 1.0f);
      const auto step = [&] {
        if (is_blocking)
          comm.allreduce_blocking("x", values);
        else
          comm.allreduce("x", values).wait();
      };
      for (int i = 0; i < 5; ++i) step();
      // If other programs hold a rank up within a step, that time counts as exposed. So one of five
      // attempts must meet the limits.
      float is_fine = 0;
      for (int attempt = 0; attempt < 5 && is_fine == 0; ++attempt) {
        const auto before = comm.statistics();
        for (int i = 0; i < kSteps; ++i) {
          if (comm.rank() == 1) std::this_thread::sleep_for(kLate);
          step();
        }
        const auto after = comm.statistics();
        const double skew = after.skew_seconds - before.skew_seconds;
        const double exposed = after.exposed_seconds - before.exposed_seconds;
        const double waited = after.wait_seconds - before.wait_seconds;
        is_fine = comm.rank() == 1 ||
                  (skew > 0.7 * std::chrono::duration<double>(kSteps * kLate).count() &&
                   exposed < 0.25 * skew && waited > 0.9 * (skew + exposed));
        if (is_fine == 0)
          std::cout << "skew " << skew << ", exposed " << exposed << ", waited " << waited << "\n";
        is_fine = comm.allreduce_blocking("is fine", is_fine, ReduceOp::min);
      }
      EXPECT_EQ(is_fine, 1);
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

// The calls are counted even if another thread has begun a long step since.
TEST(BlockingCalls, AreCountedWhileAnotherThreadDrives) {
  std::atomic<bool> holds{false}, drives{false};
  const auto tune = [&](Options& options) {
    if (options.rank != 0) return;
    options.observer = [&](std::string_view) {
      for (; holds; std::this_thread::sleep_for(milliseconds(1))) drives = true;
    };
  };
  const auto body = [&](Communicator& comm) {
    std::vector<float> values(10, 1.0f), more(2000, 1.0f);
    comm.allreduce("y", more).wait();
    const auto before = comm.statistics();
    for (int i = 0; i < 10; ++i) {
      // In the last call rank 1 is already there, so rank 0 does not wait. A wait would count the
      // call earlier.
      if (i == 9 && comm.rank() == 0) std::this_thread::sleep_for(milliseconds(20));
      comm.allreduce_blocking("x", values);
    }
    if (comm.rank() == 0) holds = true;
    auto work = comm.allreduce("y", more);
    std::thread driver([&] { work.wait(); });
    if (comm.rank() == 0) {
      EXPECT_TRUE(test::wait_until([&] { return drives.load(); }, 20));
      EXPECT_EQ(comm.statistics().operations - before.operations, 10u);
      holds = false;
    }
    driver.join();
  };
  test::run_threads(2, body, tune);
}

}  // namespace
}  // namespace tutti
