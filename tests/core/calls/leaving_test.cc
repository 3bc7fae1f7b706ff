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
#include "tests/support/seconds_since.h"
#include "tests/support/wait_until.h"
#include "tutti/core/communicator.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;
using test::error_of;
using test::seconds_since;
using testing::AllOf;
using testing::HasSubstr;

// Seconds. Without evidence of the leaving, a rank notices it only after the peer timeout, 10 s.
// The table of tests/faults/leaving_test.cc measures how fast it really is.
constexpr double kAtOnce = 5.0;

template <class Call>
void expect_left(int rank, const std::string& tensor, Call&& call) {
  const auto error = error_of(call, kAtOnce);
  EXPECT_EQ(error.code(), ErrorCode::peer_left) << error.what();
  EXPECT_EQ(error.rank(), rank) << error.what();
  EXPECT_EQ(error.tensor(), tensor) << error.what();
  EXPECT_THAT(error.what(),
              AllOf(HasSubstr(fmt::format("rank {} (", rank)), HasSubstr("closed its Communicator"),
                    HasSubstr("join()"), HasSubstr("shrink()")));
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
      expect_left(leaver, "x", [&] { one_step(comm, way_, values); });
      expect_left(leaver, "y", [&] { comm.allreduce("y", values).wait(); });
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
    expect_left(leaver, "x", [&] { one_step(comm, way_, values); });
    expect_left(leaver, "other", [&] { other.wait(); });
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
          expect_left(0, "nothing", [&] { comm.recv("nothing", values, 0).wait(); });
          expect_left(0, "x", [&] { comm.allreduce("x", values).wait(); });
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
      expect_left(1, "x", [&] { one_step(comm, way, values); });
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
    expect_left(2, "join", [&] { comm.join().wait(); });
  });
}

void sum_over(Communicator& comm, const std::string& name) {
  float one = 1;
  comm.allreduce(name, std::span(&one, 1), ReduceOp::sum).wait();
  EXPECT_EQ(one, static_cast<float>(comm.size()));
}

TEST_P(LeavingOver, TheOthersGoOnAgainWhenAnotherLeaves) {
  run(4, [](Communicator& comm) {
    sum_over(comm, "all");
    if (comm.rank() == 1) return;
    EXPECT_EQ(error_of([&] { sum_over(comm, "x"); }).rank(), 1);
    const auto since = Clock::now();
    const auto rest = comm.shrink();  // ranks 0, 2 and 3
    EXPECT_LT(seconds_since(since), 3);
    ASSERT_EQ(rest->size(), 3);
    sum_over(*rest, "three");
    if (comm.rank() == 3) return;
    const auto error = error_of([&] { sum_over(*rest, "y"); });
    EXPECT_EQ(error.code(), ErrorCode::peer_left);
    EXPECT_EQ(error.rank(), 2);
    const auto last = rest->shrink();
    EXPECT_EQ(last->size(), 2);
    EXPECT_EQ(last->rank(), comm.rank() / 2);
    sum_over(*last, "two");
  });
}

TEST_P(LeavingOver, TwoLeaveAtOnceAndTheOthersGoOn) {
  run(
      4,
      [](Communicator& comm) {
        sum_over(comm, "all");
        if (comm.rank() == 1 || comm.rank() == 2) return;
        const auto error = error_of([&] { sum_over(comm, "x"); });
        EXPECT_EQ(error.code(), ErrorCode::peer_left);
        EXPECT_THAT(error.rank(), testing::AnyOf(1, 2));
        const auto rest = comm.shrink();
        EXPECT_EQ(rest->size(), 2);
        EXPECT_EQ(rest->rank(), comm.rank() / 3);
        sum_over(*rest, "two");
      },
      [](Options& options) { options.peer_timeout = 3; });
}

// Rank 1 knows of the loss, but calls shrink() only after rank 0 has given up.
TEST(Shrink, WhoDoesNotCallItIsNamedWhenTheDeadlinePasses) {
  std::atomic<bool> has_given_up{false};
  test::run_threads(3, [&](Communicator& comm) {
    sum_over(comm, "all");
    if (comm.rank() == 2) return;
    EXPECT_EQ(error_of([&] { sum_over(comm, "x"); }).rank(), 2);
    if (comm.rank() == 1) {
      EXPECT_TRUE(test::wait_until([&] { return has_given_up.load(); }));
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
          const auto error = error_of([&] { comm.allreduce("x", values).wait(); }, kAtOnce);
          EXPECT_EQ(error.code(), ErrorCode::peer_lost);
          EXPECT_EQ(error.rank(), 1);
          EXPECT_EQ(error.tensor(), "x");
          EXPECT_THAT(error.what(), AllOf(HasSubstr("ended without closing its Communicator"),
                                          HasSubstr("shrink()")));
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
    const auto error = error_of([&] { comm.allreduce("x", std::span(&one, 1)).wait(); });
    EXPECT_THAT(error.what(), testing::Not(HasSubstr("in flight")));
    EXPECT_EQ(error.tensor(), "x");
  });
}

}  // namespace
}  // namespace tutti
