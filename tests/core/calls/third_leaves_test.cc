// A rank that leaves fails only the operations that need it. Transfers between two other ranks go
// on, over every backend and in every form.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tutti/backends/plugins.h"
#include "tutti/core/communicator.h"

namespace tutti {
namespace {

using test::expect_error;
using Values = std::vector<float>;

constexpr auto* kMissed = "closed its Communicator, so nothing that needs all ranks can be done";

class ThirdLeaves : public testing::TestWithParam<std::string> {
 protected:
  static constexpr int kLeaver = 2, kRanks = 4;  // ranks 0, 1 and 3 go on
  static constexpr int kNone = -1;

  void SetUp() override {
    try {
      load_backends(GetParam(), {}, {});
    } catch (const Error&) {
      GTEST_SKIP() << "backend " << GetParam() << " is not built here";
    }
#ifdef __SANITIZE_THREAD__
    if (GetParam() == "ucx") GTEST_SKIP() << "its order of memory accesses is not seen by tsan";
#endif
  }

  // All ranks run `before`. The ranks that go on run `body` once each of them has noticed the
  // leaving rank, so that collectives fail.
  static void run(const test::RankFunction& before, const test::RankFunction& body) {
    run(before, body, [](Communicator&) {});
  }
  // The ranks that go on begin `pending` while the leaving rank is still there. Rank 0, which
  // matches names, stays until the others no longer need it; `early` leaves after its body.
  static void run(const test::RankFunction& before, const test::RankFunction& body,
                  const test::RankFunction& pending, int early = kNone) {
    const auto rank = [&](Communicator& comm) {
      before(comm);
      comm.barrier().wait();
      if (comm.rank() == kLeaver) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        return;
      }
      pending(comm);
      expect_missed(comm, kLeaver);
      body(comm);
      if (comm.rank() == early) return;
      expect_missed(comm, early == kNone ? kLeaver : kNone);
      // Every rank that goes on names the first leaving rank before any of them leaves.
      Values last(1);
      if (comm.rank() != 0) {
        comm.send("last", last, 0).wait();
        return comm.recv("leave", last, 0).wait();
      }
      for (const int other : {1, 3})
        if (other != early) comm.recv("last", last, other).wait();
      for (const int other : {1, 3})
        if (other != early) comm.send("leave", last, other).wait();
    };
    const auto tune = test::over(GetParam());
    if (GetParam() == "shm")
      test::run_processes(kRanks, rank, tune);
    else
      test::run_threads(kRanks, rank, tune);
  }
  // Expects an error that names the rank `leaver`, or any rank if it is kNone.
  static void expect_missed(Communicator& comm, int leaver) {
    Values ones(10, 1.0f);
    const auto who = leaver == kNone ? "rank " : fmt::format("rank {} (", leaver);
    expect_error(ErrorCode::peer_left, kMissed, [&] { comm.allreduce("all", ones).wait(); });
    expect_error(ErrorCode::peer_left, who, [&] { comm.allreduce_blocking("all", ones); });
  }

  // The neighbours in a ring of the three ranks that go on.
  static int next(int rank) { return rank == 0 ? 1 : rank == 1 ? 3 : 0; }
  static int previous(int rank) { return rank == 0 ? 3 : rank == 1 ? 0 : 1; }
};

INSTANTIATE_TEST_SUITE_P(Backends, ThirdLeaves,
                         testing::Values("memory", "shm", "tcp", "hierarchical", "gloo", "ucx"),
                         [](const auto& info) { return info.param; });

std::string of(int rank) { return fmt::format("of {}", rank); }

// One round of a ring by name. All rounds are the same, so that pairs are prepared after a few.
void exchange_by_name(Communicator& comm, int to, int from, int round, size_t count = 3'000) {
  const auto value = [&](int rank) { return static_cast<float>(10 * round + rank); };
  const Values mine(count, value(comm.rank()));
  Values theirs(count);
  auto sent = comm.send(of(comm.rank()), mine, to);
  comm.recv(of(from), theirs, from).wait();
  sent.wait();
  EXPECT_EQ(theirs, Values(count, value(from))) << "round " << round;
}

TEST_P(ThirdLeaves, SendsByNameGoOn) {
  run([](Communicator&) {},
      [](Communicator& comm) {
        for (int round = 0; round < 20; ++round)
          exchange_by_name(comm, next(comm.rank()), previous(comm.rank()), round);
      });
}

TEST_P(ThirdLeaves, PreparedPairsGoOnAndMayChange) {
  const auto ring = [](Communicator& comm) {
    if (comm.rank() == kLeaver) return;
    for (int round = 0; round < 20; ++round)
      exchange_by_name(comm, next(comm.rank()), previous(comm.rank()), round);
  };
  run(ring, [&](Communicator& comm) {
    ring(comm);
    exchange_by_name(comm, next(comm.rank()), previous(comm.rank()), 20, 5'000);
    ring(comm);
  });
}

TEST_P(ThirdLeaves, WhatBlocksGoesOn) {
  run([](Communicator&) {},
      [](Communicator& comm) {
        const int to = next(comm.rank()), from = previous(comm.rank());
        for (const size_t count : {1, 3'000, 600'000})
          for (int round = 0; round < 4; ++round) {
            const Values mine(count, static_cast<float>(comm.rank() + round));
            const Values wanted(count, static_cast<float>(from + round));
            Values theirs(count);
            comm.sendrecv_blocking(of(comm.rank()), mine, to, of(from), theirs, from);
            EXPECT_EQ(theirs, wanted);
            theirs.assign(count, -1);
            if (comm.rank() == 0) comm.send_blocking("chain", mine, to);
            comm.recv_blocking("chain", theirs, from);
            if (comm.rank() != 0) comm.send_blocking("chain", mine, to);
            EXPECT_EQ(theirs, wanted);
          }
      });
}

TEST_P(ThirdLeaves, AReceiveFromAnyRankTakesWhatTheOthersSend) {
  run([](Communicator&) {},
      [](Communicator& comm) {
        if (comm.rank() != 1) return comm.send("news", Values(100, 7.0f), 1).wait();
        int sources = 0;
        for (int i = 0; i < 2; ++i) {
          Values came(100);
          auto work = comm.recv_any("news", came);
          sources += work.source();
          EXPECT_EQ(came, Values(100, 7.0f));
        }
        EXPECT_EQ(sources, 0 + 3);
      });
}

// Only one of the two ranks has asked for the transfer when the third rank leaves. Both a new and a
// prepared pair are tested.
TEST_P(ThirdLeaves, ASendThatIsPendingWaitsForItsReceiver) {
  for (const int rounds : {0, 10}) {
    std::vector<Values> sent(kRanks);
    std::vector<Work> works(kRanks);
    run(
        [&](Communicator& comm) {
          if (comm.rank() == kLeaver) return;
          for (int round = 0; round < rounds; ++round)
            exchange_by_name(comm, next(comm.rank()), previous(comm.rank()), round);
        },
        [&](Communicator& comm) {
          const auto place = static_cast<size_t>(comm.rank());
          Values theirs(3'000);
          comm.recv(of(previous(comm.rank())), theirs, previous(comm.rank())).wait();
          EXPECT_EQ(theirs, Values(3'000, static_cast<float>(previous(comm.rank()))));
          works[place].wait();
        },
        [&](Communicator& comm) {
          const auto place = static_cast<size_t>(comm.rank());
          sent[place].assign(3'000, static_cast<float>(comm.rank()));
          works[place] = comm.send(of(comm.rank()), sent[place], next(comm.rank()));
        });
  }
}

TEST_P(ThirdLeaves, WhatNeedsTheLeaverNamesIt) {
  run([](Communicator&) {},
      [](Communicator& comm) {
        Values values(100, 1.0f);
        const auto refused = [&](const char* name, auto&& call) {
          expect_error(ErrorCode::peer_left, fmt::format("\"{}\": rank {} (", name, kLeaver), call);
        };
        refused("to", [&] { comm.send("to", values, kLeaver).wait(); });
        refused("from", [&] { comm.recv("from", values, kLeaver).wait(); });
        refused("blocks", [&] { comm.recv_blocking("blocks", values, kLeaver); });
        exchange_by_name(comm, next(comm.rank()), previous(comm.rank()), 0);
      });
}

// A rank that had noticed the first leaving rank may have left because of it. Then the error names
// the first.
TEST_P(ThirdLeaves, AnotherOneLeavesLater) {
  run([](Communicator&) {},
      [](Communicator& comm) {
        Values values(100, 1.0f);
        exchange_by_name(comm, next(comm.rank()), previous(comm.rank()), 0);
        if (comm.rank() == 3) return;
        expect_error(ErrorCode::peer_left, kMissed, [&] { comm.recv("late", values, 3).wait(); });
        for (int round = 1; round < 10; ++round)
          exchange_by_name(comm, 1 - comm.rank(), 1 - comm.rank(), round);
      },
      [](Communicator&) {}, 3);
}

}  // namespace
}  // namespace tutti
