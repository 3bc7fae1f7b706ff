// A receive from any rank: which sender is taken, which wait, and the error when no rank can send.

#include <gtest/gtest.h>

#include <set>

#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tutti/core/communicator.h"

namespace tutti {
namespace {

using test::expect_error;
using test::expect_refused;
using test::over;
using test::run_threads;
using test::still_works;

// Every other rank sends once. Each receive gets one message whole and names its sender.
void gather_from_any(Communicator& comm) {
  for (int round = 0; round < 5; ++round) {
    comm.barrier("round").wait();  // otherwise the next send of a fast rank might be taken in this
                                   // round
    const auto value = [&](int rank) { return static_cast<float>(10 * round + rank); };
    if (comm.rank() != 1) {
      const std::vector<float> mine(100'000, value(comm.rank()));
      comm.send("news", mine, 1).wait();
      continue;
    }
    std::set<int> sources;
    for (int i = 1; i < comm.size(); ++i) {
      std::vector<float> came(100'000);
      auto work = comm.recv_any("news", came);
      const int source = work.source();
      EXPECT_TRUE(sources.insert(source).second) << source << " twice";
      EXPECT_NE(source, 1);
      EXPECT_EQ(came, std::vector<float>(came.size(), value(source)));
    }
  }
  still_works(comm);
}

TEST(ReceiveAny, TakesEachSenderOnce) {
  for (const char* backend : {"memory", "tcp"}) run_threads(4, gather_from_any, over(backend));
}

TEST(ReceiveAny, TwoSendersAnswerAndTheSecondWaitsForTheNext) {
  run_threads(3, [](Communicator& comm) {
    std::vector<int32_t> value{comm.rank()};
    // Rank 2's send arrives before rank 1's, and both before the first receive.
    if (comm.rank() == 2) {
      auto sent = comm.send("x", value, 0);
      comm.barrier("second has sent").wait();
      comm.barrier("first has sent").wait();
      comm.barrier("looked").wait();
      sent.wait();
    } else if (comm.rank() == 1) {
      comm.barrier("second has sent").wait();
      auto sent = comm.send("x", value, 0);
      comm.barrier("first has sent").wait();
      EXPECT_FALSE(sent.done());
      comm.barrier("looked").wait();
      sent.wait();
    } else {
      comm.barrier("second has sent").wait();
      comm.barrier("first has sent").wait();
      comm.barrier("looked").wait();  // rank 1 checks its send before any receive takes it
      for (const int from : {2, 1}) {
        auto work = comm.recv_any("x", value);
        EXPECT_EQ(work.source(), from);
        EXPECT_EQ(value[0], from);
      }
    }
    still_works(comm);
  });
}

// Sends that have become prepared pairs need no request. They are requested again when the receiver
// may receive from any rank.
TEST(ReceiveAny, TakesWhatHadBecomeAPair) {
  for (const char* backend : {"memory", "tcp"})
    run_threads(
        3,
        [](Communicator& comm) {
          std::vector<float> value(1000);
          for (int round = 0; round < 4; ++round) {
            for (int step = 0; step < 9; ++step) {
              std::fill(value.begin(), value.end(), static_cast<float>(100 * round + step));
              if (comm.rank() == 1) comm.send("x", value, 0).wait();
              if (comm.rank() != 0) continue;
              std::vector<float> came(value.size());
              if (step < 8) {
                comm.recv("x", came, 1).wait();
              } else {
                auto work = comm.recv_any("x", came);
                EXPECT_EQ(work.source(), 1);
              }
              EXPECT_EQ(came, value);
            }
          }
          if (comm.rank() < 2) {
            EXPECT_GT(comm.statistics().replayed_buckets, 0u);
          }
          still_works(comm);
        },
        over(backend));
}

TEST(ReceiveAny, AReceiveFromThatRankGoesBefore) {
  run_threads(3, [](Communicator& comm) {
    std::vector<int32_t> value{comm.rank()}, other{-1};
    if (comm.rank() == 0) {
      auto any = comm.recv_any("x", other);
      auto from_one = comm.recv("x", value, 1);
      comm.barrier("both wait").wait();
      EXPECT_EQ(from_one.source(), 1);
      EXPECT_EQ(value[0], 1);
      comm.barrier("one came").wait();
      EXPECT_EQ(any.source(), 2);
      EXPECT_EQ(other[0], 2);
    } else {
      comm.barrier("both wait").wait();
      if (comm.rank() == 1) comm.send("x", value, 0).wait();
      comm.barrier("one came").wait();
      if (comm.rank() == 2) comm.send("x", value, 0).wait();
    }
    still_works(comm);
  });
}

// A receive from any rank takes only messages with its own name.
TEST(ReceiveAny, ASendOfAnotherNameWaitsForItsOwnReceive) {
  run_threads(2, [](Communicator& comm) {
    std::vector<int32_t> work{comm.rank() * 10}, status{comm.rank() * 20};
    if (comm.rank() == 0) {
      auto any = comm.recv_any("work", work);
      comm.barrier("any waits").wait();
      comm.barrier("status was sent").wait();
      EXPECT_FALSE(any.done());
      comm.recv("status", status, 1).wait();
      EXPECT_EQ(status[0], 20);
      EXPECT_FALSE(any.done());
      comm.barrier("status came").wait();
      EXPECT_EQ(any.source(), 1);
      EXPECT_EQ(work[0], 10);
    } else {
      comm.barrier("any waits").wait();
      auto sent = comm.send("status", status, 0);
      comm.barrier("status was sent").wait();
      sent.wait();
      comm.barrier("status came").wait();
      comm.send("work", work, 0).wait();
    }
    still_works(comm);
  });
}

TEST(ReceiveAny, WhatDoesNotFitIsAnErrorOfThoseTwo) {
  run_threads(3, [](Communicator& comm) {
    std::vector<float> ten(10, 1.0f), five(5, 2.0f);
    constexpr const char* kLine =
        "\"x\": rank 0 expects f32[10], rank 1 sends f32[5]; both must name the same dtype and "
        "number of elements. Nothing was changed.";
    if (comm.rank() == 0) {
      auto work = comm.recv_any("x", ten);
      expect_error(ErrorCode::mismatch, kLine, [&] { work.wait(); });
      EXPECT_EQ(ten, std::vector<float>(10, 1.0f));
    }
    if (comm.rank() == 1)
      expect_error(ErrorCode::mismatch, kLine, [&] { comm.send("x", five, 0).wait(); });
    still_works(comm);
  });
}

// A rank that has joined sends nothing more.
TEST(ReceiveAny, AllOthersHaveJoined) {
  for (const int size : {2, 3})
    run_threads(size, [](Communicator& comm) {
      std::vector<float> values(4, 1.0f);
      if (comm.rank() == 0)
        expect_error(ErrorCode::mismatch, "\"z\": recv cannot run while rank",
                     [&] { comm.recv_any("z", values).wait(); });
      comm.join().wait();
      still_works(comm);
    });
}

TEST(ReceiveAny, NobodyIsLeftWhoCouldSend) {
  run_threads(2, [](Communicator& comm) {
    if (comm.rank() == 1) {
      comm.barrier("one waits").wait();
      comm.close();
      return;
    }
    std::vector<float> values(4);
    auto work = comm.recv_any("x", values);
    comm.barrier("one waits").wait();
    expect_error(ErrorCode::peer_left, "rank 1", [&] { work.wait(); });
  });
}

TEST(ReceiveAny, AloneThereIsNobody) {
  run_threads(1, [](Communicator& comm) {
    std::vector<float> values(4);
    expect_refused("\"x\": there is no other rank that could send to rank 0",
                   [&] { return comm.recv_any("x", values); });
  });
}

}  // namespace
}  // namespace tutti
