// Ranks close while others still need them. Operations that the closing rank has finished end on
// every rank. All others fail immediately, with the name of the rank that closed and advice.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <optional>
#include <thread>
#include <tuple>

#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tutti/core/communicator.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

// Seconds. Without evidence of the leaving, a rank notices it only after the peer timeout, 10 s.
// The table of tests/faults/leaving_test.cc measures how fast it really is.
constexpr double kAtOnce = 5.0;

// The error that was thrown, and its time in seconds after `since`.
struct Heard {
  std::optional<Error> error;
  double seconds = 0;
};

template <class Function>
Heard hear(Function&& function) {
  const auto since = Clock::now();
  Heard heard;
  try {
    function();
  } catch (const Error& error) {
    heard.error = error;
  }
  heard.seconds = std::chrono::duration<double>(Clock::now() - since).count();
  return heard;
}

void expect_left(const Heard& heard, int rank, const std::string& tensor) {
  ASSERT_TRUE(heard.error) << "nothing was thrown";
  EXPECT_EQ(heard.error->code(), ErrorCode::peer_left) << heard.error->what();
  EXPECT_EQ(heard.error->rank(), rank) << heard.error->what();
  EXPECT_EQ(heard.error->tensor(), tensor) << heard.error->what();
  EXPECT_THAT(heard.error->what(), HasSubstr(fmt::format("rank {} (", rank)));
  EXPECT_THAT(heard.error->what(), HasSubstr("closed its Communicator"));
  EXPECT_THAT(heard.error->what(), HasSubstr("join()"));
  EXPECT_THAT(heard.error->what(), HasSubstr("shrink()"));
  EXPECT_LT(heard.seconds, kAtOnce) << heard.error->what();
}

void run_ranks(const std::string& backend, int size, const test::RankFunction& body,
               const test::Tune& tune = {}) {
  if (backend == "memory") return test::run_threads(size, body, tune);
  test::run_processes(size, body, [&](Options& options) {
    options.backend = backend;
    if (tune) tune(options);
  });
}

enum class Way { replayed, negotiated, blocking };

void one_step(Communicator& comm, Way way, std::vector<float>& values) {
  if (way == Way::blocking)
    comm.allreduce_blocking("x", values, ReduceOp::sum);
  else
    comm.allreduce("x", values, ReduceOp::sum).wait();
}

class Leaving : public testing::TestWithParam<std::tuple<const char*, int, Way>> {
 protected:
  const std::string backend_ = std::get<0>(GetParam());
  const int size_ = std::get<1>(GetParam());
  const Way way_ = std::get<2>(GetParam());

  void run(const test::RankFunction& body) {
    run_ranks(backend_, size_, body,
              [this](Options& options) { options.replay = way_ == Way::replayed; });
  }
};

std::string name_of(const testing::TestParamInfo<Leaving::ParamType>& info) {
  const auto [backend, size, way] = info.param;
  return fmt::format("{}_{}_{}", backend, size,
                     way == Way::replayed     ? "replayed"
                     : way == Way::negotiated ? "negotiated"
                                              : "blocking");
}

// A case or two for each backend. The simulation covers the effects of a leaving rank in any order
// of events.
INSTANTIATE_TEST_SUITE_P(
    Backends, Leaving,
    testing::Values(std::tuple("memory", 3, Way::replayed), std::tuple("memory", 2, Way::blocking),
                    std::tuple("shm", 2, Way::replayed), std::tuple("shm", 3, Way::blocking),
                    std::tuple("tcp", 2, Way::replayed), std::tuple("tcp", 3, Way::negotiated)),
    name_of);

// The commonest mistake of all. Each rank in turn has the fewest steps.
TEST_P(Leaving, UnevenNumbersOfSteps) {
  for (int leaver = 0; leaver < size_; ++leaver) {
    run([&](Communicator& comm) {
      constexpr int kSteps = 20;
      std::vector<float> values(1000);
      for (int step = 0; step < kSteps; ++step) {
        values.assign(1000, 1.0f);
        one_step(comm, way_, values);
        ASSERT_EQ(values[999], static_cast<float>(size_));
      }
      if (comm.rank() == leaver) return;
      expect_left(hear([&] { one_step(comm, way_, values); }), leaver, "x");
      expect_left(hear([&] { comm.allreduce("y", values).wait(); }), leaver, "y");
    });
  }
}

// The rank leaves before the others need it, and while they are in the middle of an operation.
TEST_P(Leaving, InTheMiddleOfAnOperation) {
  run([&](Communicator& comm) {
    std::vector<float> values(300'000, 1.0f), more(1000, 1.0f);
    for (int step = 0; step < 10; ++step) one_step(comm, way_, values);
    const int leaver = size_ - 1;
    if (comm.rank() == leaver) {
      std::this_thread::sleep_for(milliseconds(150));
      return;
    }
    auto other = comm.allreduce("other", more);
    expect_left(hear([&] { one_step(comm, way_, values); }), leaver, "x");
    expect_left(hear([&] { other.wait(); }), leaver, "other");
  });
}

// A late rank is waited for, however late it is. tests/core/node/limits_test.cc has more cases.
void late_rank_is_waited_for(const char* backend, Way way) {
  run_ranks(
      backend, 2,
      [&](Communicator& comm) {
        std::vector<float> values(1000, 1.0f);
        for (int step = 0; step < 10; ++step) one_step(comm, way, values);
        if (comm.rank() == 1) std::this_thread::sleep_for(milliseconds(6000));
        values.assign(1000, 1.0f);
        one_step(comm, way, values);
        EXPECT_EQ(values[0], 2.0f);
      },
      [](Options& options) {
        options.peer_timeout = 4;  // the others may wait for a core longer than 1 s
      });
}

TEST(LeavingProcesses, WhoIsLateInAReplayedStepIsWaitedForOverSockets) {
  late_rank_is_waited_for("tcp", Way::replayed);
}

TEST(LeavingProcesses, WhoIsLateInABlockingCallIsWaitedForInSharedMemory) {
  late_rank_is_waited_for("shm", Way::blocking);
}

class LeavingOver : public testing::TestWithParam<const char*> {
 protected:
  void run(int size, const test::RankFunction& body, const test::Tune& tune = {}) {
    run_ranks(GetParam(), size, body, tune);
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, LeavingOver, testing::Values("memory", "shm", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

// An operation that the leaving rank submitted and did not wait for is never done.
TEST_P(LeavingOver, WhatTheLeaverSubmittedAndDidNotWaitForFails) {
  for (const bool replay : {true, false})
    run(
        3,
        [](Communicator& comm) {
          std::vector<float> values(300'000, 1.0f);
          for (int step = 0; step < 10; ++step) comm.allreduce("x", values).wait();
          if (comm.rank() == 0) {
            // The engine ends while the operation is pending. The memory outlives both.
            static std::vector<float> pending(300'000, 1.0f);
            static_cast<void>(comm.allreduce("x", pending));
            return;
          }
          expect_left(hear([&] { comm.recv("nothing", values, 0).wait(); }), 0, "nothing");
          expect_left(hear([&] { comm.allreduce("x", values).wait(); }), 0, "x");
        },
        [&](Options& options) {
          options.replay = replay;
          options.log_level = LogLevel::error;  // "failed and nobody waited for it"
        });
}

// The error names the first rank that left, even if a rank that closed because of it is noticed
// first.
TEST_P(LeavingOver, TheFirstRankThatLeftIsNamed) {
  for (const auto way : {Way::replayed, Way::blocking})
    run(3, [&](Communicator& comm) {
      std::vector<float> values(1000, 1.0f);
      for (int step = 0; step < 10; ++step) one_step(comm, way, values);
      if (comm.rank() == 1) return;
      if (comm.rank() == 2) std::this_thread::sleep_for(milliseconds(50));
      expect_left(hear([&] { one_step(comm, way, values); }), 1, "x");
    });
}

// A rank that closes because of another one gives a reason of its own, and may be noticed first.
// Here rank 2 is held until ranks 1 and 0 have closed, and then reads rank 0's farewell before rank
// 1's.
TEST(LeavingProcesses, ReadTheErrorBecauseOfWhichARankClosed) {
  static std::atomic<bool> holds_rank_2;
  holds_rank_2 = false;
  run_ranks(
      "tcp", 3,
      [](Communicator& comm) {
        std::vector<float> x(1000), y(1000);
        comm.allreduce("x", x).wait();
        if (comm.rank() == 1) {
          std::this_thread::sleep_for(milliseconds(100));
          return comm.close("ValueError: sample\n17 of " + std::string(500, 'x'));
        }
        if (comm.rank() == 2) holds_rank_2 = true;
        const auto because = fmt::format(
            "closed its Communicator because of an error (ValueError: sample 17 of {}), so nothing "
            "that needs all ranks can be done any more; shrink() gives",
            std::string(375, 'x'));
        // The first error may come in rank 0's answer. The second is found by this rank itself.
        for (const auto* name : {"y", "z"}) {
          const auto heard = hear([&] { comm.allreduce(name, y).wait(); });
          ASSERT_TRUE(heard.error) << name;
          EXPECT_EQ(heard.error->rank(), 1) << name;
          EXPECT_THAT(heard.error->what(), AllOf(HasSubstr("rank 1 ("), HasSubstr(because)));
        }
        comm.close("what rank 1 brought about");
      },
      [](Options& options) {
        if (options.rank == 2)
          options.observer = [](std::string_view phase) {
            if (phase == "negotiation" && holds_rank_2.exchange(false))
              std::this_thread::sleep_for(milliseconds(500));
          };
      });
}

// The leaving rank gives the others all that they need of a finished operation, whatever its kind.
TEST_P(LeavingOver, WhatTheLeaverFinishedEndsOnTheOthers) {
  for (int round = 0; round < 3; ++round)
    run(3, [&](Communicator& comm) {
      std::vector<float> large(200'000, 1.0f), small(100, 1.0f), from(900, 1.0f), sum(900);
      std::vector<Work> works;
      works.push_back(comm.allreduce("large", large, ReduceOp::sum));
      works.push_back(comm.allreduce("small", small, ReduceOp::sum));
      works.push_back(comm.reduce("reduce", from, sum, round % 3));
      works.push_back(comm.allgather("allgather", small));
      works.push_back(comm.broadcast("broadcast", from, (round + 1) % 3));
      works.push_back(comm.alltoall("alltoall", from));
      works.push_back(comm.reduce_scatter("reduce_scatter", from));
      works.push_back(comm.barrier());
      if (comm.rank() == round % 2) std::this_thread::sleep_for(milliseconds(2));
      for (auto& work : works) work.wait();
      EXPECT_EQ(large[199'999], 3.0f);
    });
}

TEST_P(LeavingOver, AJoinThatTheLeaverFinishedEndsAndOneThatItNeverMadeFails) {
  run(3, [](Communicator& comm) {
    comm.join().wait();
    if (comm.rank() == 2) return;
    if (comm.rank() == 1) std::this_thread::sleep_for(milliseconds(100));
    expect_left(hear([&] { comm.join().wait(); }), 2, "join");
  });
}

TEST_P(LeavingOver, TheOthersGoOnByShrink) {
  run(3, [](Communicator& comm) {
    std::vector<float> values(1000, 1.0f);
    for (int step = 0; step < 10; ++step) comm.allreduce("x", values).wait();
    if (comm.rank() == 1) return;
    expect_left(hear([&] { comm.allreduce("x", values).wait(); }), 1, "x");
    const auto since = Clock::now();
    const auto rest = comm.shrink();
    EXPECT_EQ(rest->size(), 2);
    EXPECT_LT(Clock::now() - since, std::chrono::seconds(3));
    float one = 1;
    rest->allreduce("y", std::span(&one, 1), ReduceOp::sum).wait();
    EXPECT_EQ(one, 2.0f);
  });
}

// Runs one sum over all ranks of `comm` and returns the error, if any.
Heard sum_over(Communicator& comm, const std::string& name) {
  return hear([&] {
    float one = 1;
    comm.allreduce(name, std::span(&one, 1), ReduceOp::sum).wait();
    EXPECT_EQ(one, static_cast<float>(comm.size()));
  });
}

TEST_P(LeavingOver, TheOthersGoOnAgainWhenAnotherLeaves) {
  run(4, [](Communicator& comm) {
    EXPECT_FALSE(sum_over(comm, "all").error);
    if (comm.rank() == 1) return;
    EXPECT_EQ(sum_over(comm, "x").error.value().rank(), 1);
    const auto rest = comm.shrink();  // ranks 0, 2 and 3
    ASSERT_EQ(rest->size(), 3);
    EXPECT_FALSE(sum_over(*rest, "three").error);
    if (comm.rank() == 3) return;
    const auto heard = sum_over(*rest, "y");
    EXPECT_EQ(heard.error.value().code(), ErrorCode::peer_left);
    EXPECT_EQ(heard.error.value().rank(), 2);
    const auto last = rest->shrink();
    EXPECT_EQ(last->size(), 2);
    EXPECT_EQ(last->rank(), comm.rank() / 2);
    EXPECT_FALSE(sum_over(*last, "two").error);
  });
}

TEST_P(LeavingOver, TwoLeaveAtOnceAndTheOthersGoOn) {
  run(
      4,
      [](Communicator& comm) {
        EXPECT_FALSE(sum_over(comm, "all").error);
        if (comm.rank() == 1 || comm.rank() == 2) return;
        const auto heard = sum_over(comm, "x");
        EXPECT_EQ(heard.error.value().code(), ErrorCode::peer_left);
        EXPECT_THAT(heard.error.value().rank(), testing::AnyOf(1, 2));
        const auto rest = comm.shrink();
        EXPECT_EQ(rest->size(), 2);
        EXPECT_EQ(rest->rank(), comm.rank() / 3);
        EXPECT_FALSE(sum_over(*rest, "two").error);
      },
      [](Options& options) { options.peer_timeout = 3; });
}

// Rank 1's engine is stopped at its first sum. So the last sums, and the send of rank 0 to rank 1
// between them, have begun nowhere when rank 2 leaves.
TEST(LeavingThreads, ASendBetweenTheOthersIsNotAmongWhatFails) {
  constexpr size_t kSums = 10;  // two more than run at the same time; "pair" comes before the last
                                // one
  constexpr uint64_t kBuckets = kSums + 1;
  std::atomic<bool> holds{false}, has_failed{false};
  const auto await = [](const auto& is_so) {
    const auto deadline = Deadline::after(30);
    while (!is_so() && !deadline.passed()) std::this_thread::sleep_for(milliseconds(1));
    EXPECT_TRUE(is_so());
  };
  const auto await_failure = [&] { await([&] { return has_failed.load(); }); };
  std::vector<std::vector<float>> values(3 * kSums, std::vector<float>(100, 1.0f));
  test::run_threads(
      3,
      [&](Communicator& comm) {
        const auto rank = static_cast<size_t>(comm.rank());
        std::vector<float> sent(10, 7.0f), got(10);
        std::vector<Work> sums;
        Work pair;
        const auto submit = [&] {
          for (size_t i = 0; i < kSums; ++i) {
            if (i + 1 == kSums && rank == 0) pair = comm.send("pair", sent, 1);
            if (i + 1 == kSums && rank == 1) pair = comm.recv("pair", got, 0);
            sums.push_back(comm.allreduce(fmt::format("sum {}", i), values[rank * kSums + i]));
          }
        };
        // Once "go" is done, only rank 0's requests are missing.
        float go = 1;
        if (rank != 0) submit();
        comm.allreduce("go", std::span(&go, 1)).wait();
        if (rank == 1) holds = true;
        if (rank == 0) {
          await([&] { return holds.load(); });
          submit();
        } else if (rank == 1) {
          await_failure();
        } else {
          return await([&] { return comm.statistics().buckets >= kBuckets; });
        }
        // Rank 1 may still have all that it needs for the first sums.
        for (size_t i = 0; rank == 0 && i < kSums; ++i)
          EXPECT_EQ(hear([&] { sums[i].wait(); }).error.value().rank(), 2);
        has_failed = true;
        pair.wait();
        if (rank == 1) {
          EXPECT_EQ(got, sent);
        }
      },
      [&](Options& options) {
        options.fusion_bytes = 0;
        options.peer_timeout = 60;            // rank 1 is stopped for as long as the others take
        options.log_level = LogLevel::error;  // "failed and nobody waited for it"
        if (options.rank == 1)
          options.observer = [&](std::string_view point) {
            if (point == "pack" && holds && !has_failed) await_failure();
          };
      });
}

// Rank 1 knows of the loss, but calls shrink() only after rank 0 has given up.
TEST(Shrink, WhoDoesNotCallItIsNamedWhenTheDeadlinePasses) {
  std::atomic<bool> has_given_up{false};
  test::run_threads(3, [&](Communicator& comm) {
    EXPECT_FALSE(sum_over(comm, "all").error);
    if (comm.rank() == 2) return;
    EXPECT_EQ(sum_over(comm, "x").error.value().rank(), 2);
    if (comm.rank() == 1) {
      const auto deadline = Deadline::after(30);
      while (!has_given_up && !deadline.passed()) std::this_thread::sleep_for(milliseconds(1));
      return;
    }
    test::expect_error(ErrorCode::timeout,
                       "shrink: the deadline has passed while rank 1 did not say that it lives; "
                       "every survivor must call it",
                       [&] { comm.shrink(Deadline::after(2)); });
    has_given_up = true;
  });
}

// Ends the process immediately: under tsan, _exit() sleeps for a second. Without a launcher no rank
// knows the exit code, but the others see that the process has ended.
void end_this_process() { ::syscall(SYS_exit_group, 0); }

TEST(LeavingProcesses, WhoExitsWithoutClosingIsNamedAsEnded) {
  for (const char* backend : {"shm", "tcp"}) {
    test::run_processes(
        2,
        [](Communicator& comm) {
          std::vector<float> values(1000, 1.0f);
          for (int step = 0; step < 10; ++step) comm.allreduce("x", values).wait();
          if (comm.rank() == 1) end_this_process();
          const auto heard = hear([&] { comm.allreduce("x", values).wait(); });
          ASSERT_TRUE(heard.error);
          EXPECT_EQ(heard.error->code(), ErrorCode::peer_lost);
          EXPECT_EQ(heard.error->rank(), 1);
          EXPECT_EQ(heard.error->tensor(), "x");
          EXPECT_THAT(heard.error->what(), HasSubstr("ended without closing its Communicator"));
          EXPECT_THAT(heard.error->what(), HasSubstr("shrink()"));
          EXPECT_LT(heard.seconds, kAtOnce);
        },
        [&](Options& options) { options.backend = backend; });
  }
}

TEST(LeavingProcesses, NothingInFlightIsNotTalkedAbout) {
  test::run_processes(2, [](Communicator& comm) {
    comm.barrier_blocking();
    if (comm.rank() == 1) end_this_process();
    std::this_thread::sleep_for(milliseconds(300));
    float one = 1;
    const auto heard = hear([&] { comm.allreduce("x", std::span(&one, 1)).wait(); });
    ASSERT_TRUE(heard.error);
    EXPECT_THAT(heard.error->what(), testing::Not(HasSubstr("in flight")));
    EXPECT_EQ(heard.error->tensor(), "x");
  });
}

}  // namespace
}  // namespace tutti
