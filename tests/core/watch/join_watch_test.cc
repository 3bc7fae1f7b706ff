// A rank that waits in join() waits as in any other operation. If a rank hangs, the waiting rank
// gets an error in time. If a rank is late, there are reports and the operation timeout. These
// tests use processes over tcp. tests/core/node/limits_test.cc shows the same without waiting, and
// the simulation in any order of events.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

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
// Seconds of reserve for a busy machine. Without the watch the wait would never end.
constexpr double kRoom = 10;

// Only rank 0 knows which ranks have joined. If it hangs, each waiting rank must check for itself.
TEST(JoinWatch, WhoStandsStillIsSilent) {
  for (const int still : {2, 0}) {
    SCOPED_TRACE(fmt::format("rank {} stands still", still));
    test::run_processes(
        3,
        [still](Communicator& comm) {
          const int pid = ::getpid();
          std::vector<int> pids(3);
          pids[static_cast<size_t>(comm.rank())] = pid;
          comm.allreduce("pids", pids, ReduceOp::sum).wait();
          if (comm.rank() == still) {
            ::kill(pid, SIGSTOP);
            return;
          }
          const auto since = Clock::now();
          expect_error(ErrorCode::peer_silent, fmt::format("rank {} (", still),
                       [&] { comm.join().wait(); });
          EXPECT_LT(test::seconds_since(since), kPeerTimeout + kRoom);
          if (comm.rank() != 1) return;
          std::this_thread::sleep_for(milliseconds(500));  // the other rank gets the error
          ::kill(pids[static_cast<size_t>(still)], SIGCONT);
        },
        [](Options& options) {
          options.backend = "tcp";
          options.peer_timeout = kPeerTimeout;
        });
  }
}

// The rank is late, not silent. It is reported, and then the operation timeout ends the join on all
// ranks.
TEST(JoinWatch, WhoIsLateIsReportedAndTimesOut) {
  std::mutex mutex;
  std::string log;
  test::run_processes(
      3,
      [&](Communicator& comm) {
        comm.barrier("all are here").wait();
        const auto since = Clock::now();
        if (comm.rank() == 2) {
          std::this_thread::sleep_for(milliseconds(2500));
          expect_error(ErrorCode::timeout, "\"join\" took more than TUTTI_OPERATION_TIMEOUT=", [&] {
            comm.barrier().wait();
          });
          return;
        }
        expect_error(ErrorCode::timeout, "It waits for rank 2.", [&] { comm.join().wait(); });
        EXPECT_LT(test::seconds_since(since), kOperationTimeout + kRoom);
        if (comm.rank() != 0) return;
        const std::lock_guard lock(mutex);
        EXPECT_THAT(log, testing::ContainsRegex("\"join\" has waited [0-9.]+ s for rank 2"));
      },
      [&](Options& options) {
        options.backend = "tcp";
        options.operation_timeout = kOperationTimeout;
        options.stall_warning = 0.6;
        options.log = [&](LogLevel, std::string_view line) {
          const std::lock_guard lock(mutex);
          log += line;
        };
      });
}

}  // namespace
}  // namespace tutti
