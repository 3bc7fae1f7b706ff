// A rank that waits in join() waits like any other: for a rank that stands still it hears a verdict
// in time, for one that is late there are reports and the limit for operations.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/seconds_since.h"
#include "tutti/core/communicator.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;
using test::expect_error;
using testing::HasSubstr;

constexpr double kPeerTimeout = 1.5, kOperationTimeout = 1.0;
// A wait that no watch ends would never end. This many seconds tell it from a busy machine.
constexpr double kRoom = 10;

void run_ranks(const std::string& backend, int size, const test::RankFunction& body,
               const test::Tune& more) {
  const auto tune = [&](Options& options) {
    options.backend = backend;
    more(options);
  };
  if (backend == "memory")
    test::run_threads(size, body, tune);
  else
    test::run_processes(size, body, tune);
}

class JoinWatch : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, JoinWatch, testing::Values("memory", "shm", "tcp"),
                         [](const auto& info) { return info.param; });

void expect_silent(Communicator& comm, int still) {
  const auto since = Clock::now();
  expect_error(ErrorCode::peer_silent, fmt::format("rank {} (", still),
               [&] { comm.join().wait(); });
  EXPECT_LT(test::seconds_since(since), kPeerTimeout + kRoom);
}

// The rank is a thread: its engine stands still in the program's observer.
void stand_still_as_a_thread(int still) {
  std::atomic<bool> stands{false};
  std::atomic<int> heard{0};
  const auto await = [](auto&& is_so) {
    const auto deadline = Deadline::after(40);
    while (!is_so() && !deadline.passed()) std::this_thread::sleep_for(milliseconds(1));
  };
  test::run_threads(
      3,
      [&](Communicator& comm) {
        comm.barrier().wait();
        if (comm.rank() == still) {
          stands = true;
          return await([&] { return heard == 2; });
        }
        expect_silent(comm, still);
        ++heard;
      },
      [&](Options& options) {
        options.peer_timeout = kPeerTimeout;
        options.log_level = LogLevel::error;
        if (options.rank == still)
          options.observer = [&](std::string_view point) {
            if (point == "idle" && stands) await([&] { return heard == 2; });
          };
      });
}

// The rank is a process, and stopped.
void stand_still_as_a_process(const std::string& backend, int still) {
  run_ranks(
      backend, 3,
      [still](Communicator& comm) {
        const int pid = ::getpid();
        std::vector<int> pids(3);
        pids[static_cast<size_t>(comm.rank())] = pid;
        comm.allreduce("pids", pids, ReduceOp::sum).wait();
        if (comm.rank() == still) {
          ::kill(pid, SIGSTOP);
          return;
        }
        expect_silent(comm, still);
        if (comm.rank() != 1) return;
        std::this_thread::sleep_for(milliseconds(500));  // until the other has heard it, too
        ::kill(pids[static_cast<size_t>(still)], SIGCONT);
      },
      [](Options& options) { options.peer_timeout = kPeerTimeout; });
}

// Rank 0 alone knows who has joined, so without it each rank that waits must look by itself.
TEST_P(JoinWatch, WhoStandsStillIsSilent) {
  for (const int still : {2, 0}) {
    SCOPED_TRACE(fmt::format("rank {} stands still", still));
    if (GetParam() == "memory")
      stand_still_as_a_thread(still);
    else
      stand_still_as_a_process(GetParam(), still);
  }
}

// It is late, not silent: it is reported and then the operation timeout ends it on all ranks.
TEST_P(JoinWatch, WhoIsLateIsReportedAndTimesOut) {
  struct Log {
    std::mutex mutex;
    std::string text;
  } log;
  for (const int late : {2, 0}) {
    run_ranks(
        GetParam(), 3,
        [&](Communicator& comm) {
          comm.barrier("all are here").wait();
          const auto since = Clock::now();
          if (comm.rank() == late) {
            std::this_thread::sleep_for(milliseconds(2500));
            expect_error(ErrorCode::timeout, "\"join\" took more than TUTTI_OPERATION_TIMEOUT=",
                         [&] { comm.barrier().wait(); });
          } else {
            expect_error(ErrorCode::timeout, fmt::format("It waits for rank {}.", late),
                         [&] { comm.join().wait(); });
            EXPECT_LT(test::seconds_since(since), kOperationTimeout + kRoom);
          }
          if (comm.rank() != 0) return;
          const std::lock_guard lock(log.mutex);
          EXPECT_THAT(log.text, HasSubstr(fmt::format("\"join\" waits for rank {} since", late)));
        },
        [&](Options& options) {
          options.operation_timeout = kOperationTimeout;
          options.stall_warning = 0.6;
          options.log = [&](LogLevel, std::string_view line) {
            const std::lock_guard lock(log.mutex);
            log.text += line;
          };
        });
  }
}

// Whoever is out of data waits for as long as the others go on, however long that is.
TEST_P(JoinWatch, OthersThatGoOnAreNotLate) {
  run_ranks(
      GetParam(), 3,
      [&](Communicator& comm) {
        std::vector<float> values(100);
        for (int step = 0; step < (comm.rank() == 1 ? 1 : 12); ++step) {
          if (step > 0) std::this_thread::sleep_for(milliseconds(250));
          values.assign(100, 1.0f);
          comm.allreduce("x", values, ReduceOp::sum).wait();
          EXPECT_EQ(values[0], step == 0 ? 3.0f : 2.0f);
        }
        comm.join().wait();
        test::still_works(comm);
      },
      [](Options& options) { options.operation_timeout = kOperationTimeout; });
}

}  // namespace
}  // namespace tutti
