// A member hangs while split() or shrink() connects it. The members that wait for it get the error
// as soon as the parent communicator knows that it is silent, long before the connect timeout.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/seconds_since.h"
#include "tutti/core/communicator.h"

namespace tutti {
namespace {

using test::seconds_since;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr double kPeerTimeout = 1.5;
// Seconds until the members know, with a reserve for a busy machine. The connect timeout is a
// multiple of it.
constexpr double kSoon = kPeerTimeout + 2;
constexpr double kConnectTimeout = 30;

// The parameters are a backend and the point at which the member hangs. Either it has met the
// others, or it is connected and the others do not know that yet.
class StandingStill : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  // Returns options with which `rank` calls `pause` at that point of the second communicator that
  // it makes.
  static test::Tune pausing(int rank, std::function<void()> pause) {
    return [rank, pause = std::move(pause)](Options& options) {
      options.backend = std::get<0>(GetParam());
      options.peer_timeout = kPeerTimeout;
      options.connect_timeout = kConnectTimeout;
      options.log = [](LogLevel, std::string_view) {};
      if (options.rank != rank) return;
      options.observer = [pause, made = std::make_shared<int>(0)](std::string_view point) {
        if (point == std::get<1>(GetParam()) && ++*made == 2) pause();
      };
    };
  }
  static test::Tune stopping(int rank) {
    return pausing(rank, [] { ::kill(::getpid(), SIGSTOP); });
  }

  static int process_of(Communicator& comm, int rank) {
    const int own = ::getpid();
    const auto all = comm.allgather_bytes("processes", std::as_bytes(std::span(&own, 1)));
    int process = 0;
    std::memcpy(&process, all[static_cast<size_t>(rank)].data(), sizeof process);
    return process;
  }

  static void expect_silent(int rank, std::string_view begins, const std::function<void()>& call) {
    const auto begin = Clock::now();
    const auto error = test::expect_error(ErrorCode::peer_silent, "", [&] { call(); });
    EXPECT_EQ(error.rank(), rank) << error.what();
    EXPECT_THAT(error.what(), AllOf(StartsWith(std::string(begins)),
                                    HasSubstr(fmt::format("rank {} (host ", rank)),
                                    HasSubstr("is silent: no answer for")));
    EXPECT_LT(seconds_since(begin), kSoon);
  }

  static void expect_to_go_on(Communicator& comm, int size) {
    const auto rest = comm.shrink(Deadline::after(20));
    EXPECT_EQ(rest->size(), size);
    test::still_works(*rest);
  }
};
INSTANTIATE_TEST_SUITE_P(Of, StandingStill,
                         testing::Combine(testing::Values("shm", "tcp"),
                                          testing::Values("rendezvous", "connected")),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" + std::get<1>(info.param);
                         });

// No rank has an operation pending on the parent.
TEST_P(StandingStill, TheOtherMemberOfASplitHearsThoughNobodyUsesTheParent) {
  test::run_processes(
      2,
      [](Communicator& comm) {
        const auto process = process_of(comm, 1);
        expect_silent(1, "split: rank 1 (host ", [&] { comm.split(0); });
        expect_to_go_on(comm, 1);
        ::kill(process, SIGKILL);
      },
      stopping(1), 60, 1);
}

// The ranks of the other color notice the hanging rank, and shrink immediately. They leave no
// living rank behind.
TEST_P(StandingStill, TheOtherMemberOfASplitHearsWhatTheOtherColorFindsOut) {
  test::run_processes(
      4,
      [](Communicator& comm) {
        const auto process = process_of(comm, 1);
        if (comm.rank() == 0) {
          expect_silent(1, "split: rank 1 (host ", [&] { comm.split(0); });
        } else {
          const auto part = comm.split(comm.rank() / 2);
          expect_silent(1, "", [&] { comm.barrier_blocking(); });
        }
        expect_to_go_on(comm, 3);
        if (comm.rank() == 0) ::kill(process, SIGKILL);
      },
      stopping(1), 60, 1);
}

Communicator* parent = nullptr;  // the parent of rank 1, which is a process

// Rank 1 lives and is late. Rank 2, which has no color, ended the parent.
TEST_P(StandingStill, AnotherRankThanAMemberIsNamed) {
  test::run_processes(
      3,
      [](Communicator& comm) {
        const auto process = process_of(comm, 2);
        parent = &comm;
        if (comm.rank() == 2) {
          comm.split(-1);
          ::kill(::getpid(), SIGSTOP);
          return;
        }
        if (comm.rank() == 0)
          expect_silent(2, "split: rank 2 (host ", [&] { comm.split(0); });
        else
          EXPECT_THROW(comm.split(0), Error);
        expect_to_go_on(comm, 2);
        if (comm.rank() == 0) ::kill(process, SIGKILL);
      },
      pausing(1,
              [] {
                EXPECT_THROW(parent->barrier_blocking(), Error);
                // Rank 0 checks ten times a second.
                std::this_thread::sleep_for(std::chrono::seconds(1));
              }),
      60, 2);
}

// The parent of the shrink has not lost a rank yet.
TEST_P(StandingStill, AShrinkGoesOnWithoutIt) {
  test::run_processes(
      3,
      [](Communicator& comm) {
        const auto process = process_of(comm, 1);
        expect_to_go_on(comm, 2);
        if (comm.rank() == 0) ::kill(process, SIGKILL);
      },
      stopping(1), 60, 1);
}

}  // namespace
}  // namespace tutti
