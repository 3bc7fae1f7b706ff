// Blocking sends and receives. They are matched by order where memory is shared and by name
// elsewhere.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include "tests/support/bulk.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace tutti {
namespace {

using Numbers = std::vector<int64_t>;

// The numbers repeat after a prime count, so that no chunk boundary falls on a repetition.
Numbers sent_by(int rank, int64_t count, int step) {
  Numbers cycle(1'009), numbers(static_cast<size_t>(count));
  std::iota(cycle.begin(), cycle.end(), 1'000'000 * rank + 10'000'000 * step);
  test::fill_cycle(std::span(numbers), cycle);
  return numbers;
}

std::string from(int rank) { return fmt::format("from {}", rank); }
int next(const Communicator& comm) { return (comm.rank() + 1) % comm.size(); }
int previous(const Communicator& comm) { return (comm.rank() + comm.size() - 1) % comm.size(); }

// Sends and receives around a ring at the same time, up a chain, and between each two ranks.
void pairs_of_all_sizes(Communicator& comm) {
  const int rank = comm.rank(), size = comm.size();
  int step = 0;
  for (const int64_t count : {0, 1, 11, 3'000, 32'768, 100'001, 600'000})
    for (int again = 0; again < 3; ++again) {
      SCOPED_TRACE(fmt::format("{} numbers on rank {}", count, rank));
      const auto mine = sent_by(rank, count, ++step);
      Numbers got(mine.size(), -1);
      comm.sendrecv_blocking(from(rank), mine, next(comm), from(previous(comm)), got,
                             previous(comm));
      EXPECT_TRUE(test::same(got, sent_by(previous(comm), count, step)));

      if (rank == 0) got = mine;
      if (rank > 0) comm.recv_blocking("up", got, rank - 1);
      if (rank + 1 < size) comm.send_blocking("up", got, rank + 1);
      EXPECT_TRUE(test::same(got, sent_by(0, count, step)));

      for (int lower = 0; lower < size; ++lower)
        for (int upper = lower + 1; upper < size; ++upper) {
          if (rank == lower) comm.send_blocking("to each", mine, upper);
          if (rank != upper) continue;
          comm.recv_blocking("to each", got, lower);
          EXPECT_TRUE(test::same(got, sent_by(lower, count, step)));
        }
    }
  comm.barrier_blocking();  // no rank leaves before the others have their data
}

TEST(BlockingPairs, OverThreads) {
  for (const int size : test::rank_counts({2, 3, 5})) test::run_threads(size, pairs_of_all_sizes);
}
TEST(BlockingPairs, OverProcesses) {
  test::run_processes(3, pairs_of_all_sizes, test::over("shm"));
}
TEST(BlockingPairs, OverTcp) { test::run_threads(3, pairs_of_all_sizes, test::over("tcp")); }
TEST(BlockingPairs, WhereAnOverrideNamesTheirSchedule) {
  test::run_threads(3, pairs_of_all_sizes,
                    [](Options& options) { options.algorithms = "recv:0-inf=direct"; });
}

// Other blocking transfers and operations by name run in between, also under the same names.
TEST(BlockingPairs, BetweenOtherOperations) {
  test::run_threads(3, [](Communicator& comm) {
    for (int step = 0; step < 50; ++step) {
      std::vector<float> sum(3'000, 1.0f);
      auto reduced = comm.allreduce("sum", sum, ReduceOp::sum);
      const auto mine = sent_by(comm.rank(), 500, step);
      Numbers by_order(500), by_name(500), each(3);
      auto sent = comm.send(from(comm.rank()), mine, next(comm));
      comm.sendrecv_blocking(from(comm.rank()), mine, next(comm), from(previous(comm)), by_order,
                             previous(comm));
      comm.recv(from(previous(comm)), by_name, previous(comm)).wait();
      comm.allgather_blocking("ranks", Numbers(1, comm.rank()), each);
      sent.wait();
      reduced.wait();
      ASSERT_EQ(by_order, sent_by(previous(comm), 500, step));
      ASSERT_EQ(by_name, by_order);
      ASSERT_EQ(each, Numbers({0, 1, 2}));
      ASSERT_EQ(sum[2'999], 3.0f);
    }
    comm.barrier_blocking();
  });
}

// Nothing is packed or negotiated, and only the calling thread works.
TEST(BlockingPairs, WhatTheyCost) {
  test::run_processes(
      2,
      [](Communicator& comm) {
        constexpr int64_t kCount = 100'000, kSteps = 100;
        const int other = 1 - comm.rank();
        const auto memory = comm.allocate(kCount * 8);
        const TensorView mine(memory.data(), Shape{kCount}, DataType::i64);
        Numbers plain(kCount, comm.rank());
        std::memcpy(mine.data(), plain.data(), plain.size() * sizeof plain[0]);
        const Numbers others(kCount, other);
        Numbers got(kCount);
        const auto exchange = [&](const TensorView& sent) {
          comm.sendrecv_blocking(from(comm.rank()), sent, other, from(other), got, other);
          ASSERT_TRUE(test::same(got, others));
        };
        const auto costs = [&](const TensorView& sent) {
          exchange(sent);
          comm.barrier_blocking();
          const auto before = comm.statistics();
          for (int step = 0; step < kSteps; ++step) exchange(sent);
          auto after = comm.statistics();
          comm.barrier_blocking();
          after.allocations -= before.allocations;
          after.negotiation_messages -= before.negotiation_messages;
          after.copied_bytes -= before.copied_bytes;
          after.data_bytes -= before.data_bytes;
          after.operations -= before.operations;
          return after;
        };
        const auto in_place = costs(mine), packed = costs(plain);
        EXPECT_EQ(in_place.copied_bytes, 0u);
        EXPECT_EQ(packed.copied_bytes, 2u * kSteps * kCount * 8);  // into slots and out of them
        for (const auto& cost : {in_place, packed}) {
          EXPECT_EQ(cost.allocations, 0u);
          EXPECT_EQ(cost.negotiation_messages, 0u);
          EXPECT_EQ(cost.data_bytes, uint64_t{kSteps * kCount * 8});
          EXPECT_EQ(cost.operations, uint64_t{2 * kSteps});
        }
      },
      test::over("shm"));
}

// Both ranks get an error that names who called what. Nothing is written, and the next call works.
// A third rank notices nothing.
TEST(BlockingPairs, TwoRanksThatDisagreeBothHearItAndGoOn) {
  std::mutex mutex;
  std::vector<std::string> texts;
  test::run_threads(3, [&](Communicator& comm) {
    const bool sends = comm.rank() == 1;
    Numbers few(4, comm.rank()), many(90'000, comm.rank());
    std::vector<float> floats(4, -1.0f);
    const auto attempt = [&](const auto& call) {
      const auto error = test::expect_error(ErrorCode::mismatch, "", [&] { call(); });
      const std::lock_guard lock(mutex);
      texts.push_back(fmt::format("{}: {}", error.tensor(), error.what()));
    };
    const auto differ = [&](const char* name, const TensorView& sent, const char* other,
                            const TensorView& received) {
      attempt([&] {
        sends ? comm.send_blocking(name, sent, 0) : comm.recv_blocking(other, received, 1);
      });
      Numbers got(4);
      sends ? comm.send_blocking("after", few, 0) : comm.recv_blocking("after", got, 1);
      if (!sends) {
        EXPECT_EQ(got, Numbers(4, 1));
      }
    };
    if (comm.rank() < 2) {
      differ("x", many, "x", few);
      differ("x", few, "x", floats);
      differ("x", few, "y", few);
      // The transfer in one direction fails, the one in the other direction succeeds. The error
      // comes after both.
      attempt([&] {
        comm.sendrecv_blocking(from(comm.rank()), few, 1 - comm.rank(), from(1 - comm.rank()),
                               sends ? many : Numbers(3), 1 - comm.rank());
      });
      EXPECT_EQ(few, Numbers(4, comm.rank()));
      EXPECT_EQ(many, Numbers(90'000, comm.rank()));
      EXPECT_EQ(floats, std::vector<float>(4, -1.0f));
    }
    test::still_works(comm);
  });
  ASSERT_EQ(texts.size(), 8u);
  const auto heard = [&](int times, std::string_view text) {
    EXPECT_EQ(std::count(texts.begin(), texts.end(), text), times) << text << "\n" << texts.back();
  };
  const std::string rule =
      "; blocking sends and receives must have the same order and the same arguments on both "
      "ranks. Nothing was changed.";
  heard(2, "x: rank 1 sends \"x\" with i64[90000], rank 0 receives \"x\" with i64[4]" + rule);
  heard(2, "x: rank 1 sends \"x\" with i64[4], rank 0 receives \"x\" with f32[4]" + rule);
  heard(1, "x: rank 1 sends \"x\" with i64[4], rank 0 receives \"y\" with i64[4]" + rule);
  heard(1, "y: rank 1 sends \"x\" with i64[4], rank 0 receives \"y\" with i64[4]" + rule);
}

TEST(BlockingPairs, BadInputIsRefusedBeforeAnythingIsSent) {
  std::promise<void> attached;
  test::run_threads(2, [&](Communicator& comm) {
    const int other = 1 - comm.rank();
    Numbers numbers(4);
    test::expect_refused("rank 2 of 2 does not exist",
                         [&] { comm.send_blocking("x", numbers, 2); });
    test::expect_refused("cannot send to itself",
                         [&] { comm.recv_blocking("x", numbers, comm.rank()); });
    test::expect_refused("what is sent and what is received share memory", [&] {
      comm.sendrecv_blocking("x", numbers, other, "y", std::span(numbers).subspan(1), other);
    });
    Numbers apart(4);
    test::expect_refused("what is sent and what is received have the same name; give each its own",
                         [&] { comm.sendrecv_blocking("x", numbers, other, "x", apart, other); });
    test::expect_refused("of rank " + std::to_string(comm.rank()) + " has no memory", [&] {
      comm.recv_blocking("x", TensorView(nullptr, Shape{4}, DataType::i64), other);
    });
    // Rank 1 submits "x" only after rank 0 has attached its callback. Otherwise the callback would
    // run within then() and might wait. The callback uses variables of this function's stack.
    std::promise<void> called;
    if (comm.rank() == 1) {
      ASSERT_EQ(attached.get_future().wait_for(std::chrono::seconds(20)),
                std::future_status::ready);
      comm.allreduce("x", numbers).wait();
    } else {
      comm.allreduce("x", numbers).then([&](std::exception_ptr) {
        test::expect_error(ErrorCode::callback, "would wait for itself",
                           [&] { comm.send_blocking("x", numbers, other); });
        called.set_value();
      });
      attached.set_value();
      ASSERT_EQ(called.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
    }
    comm.barrier().wait();
    test::still_works(comm);
  });
}

// Data that was sent arrives although its sender has left. A receive of data that was never sent
// fails.
TEST(BlockingPairs, TheOtherRankLeaves) {
  for (const auto* backend : {"memory", "shm"}) {
    SCOPED_TRACE(backend);
    test::run_threads(
        2,
        [](Communicator& comm) {
          // More than the slots hold, so the sender waits for the receiver.
          Numbers numbers(600'000, comm.rank());
          if (comm.rank() == 1) return comm.send_blocking("x", numbers, 0);
          comm.recv_blocking("x", numbers, 1);
          EXPECT_EQ(numbers, Numbers(600'000, 1));
          test::expect_error(ErrorCode::peer_left, "\"y\": rank 1",
                             [&] { comm.recv_blocking("y", numbers, 1); });
          EXPECT_EQ(numbers, Numbers(600'000, 1));
        },
        test::over(backend));
  }
}

// The leaving rank belongs to neither side, so the send and the receive may still meet.
TEST(BlockingPairs, AThirdRankLeaves) {
  test::run_threads(3, [](Communicator& comm) {
    Numbers numbers(4, comm.rank());
    comm.barrier().wait();
    if (comm.rank() == 2) return;
    try {
      if (comm.rank() == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        comm.send_blocking("x", numbers, 0);
      } else {
        comm.recv_blocking("x", numbers, 1);
      }
      EXPECT_EQ(numbers, Numbers(4, 1));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::peer_left) << error.what();
    }
  });
}

// A blocking send and a receive that does not block never meet. Both ranks get an error.
TEST(BlockingPairs, AReceiveThatDoesNotBlockMeetsNoneThatDoes) {
  test::run_processes(
      2,
      [](Communicator& comm) {
        Numbers numbers(4);
        test::expect_error(ErrorCode::mismatch, "\"x\": rank 0 waits in a blocking call", [&] {
          if (comm.rank() == 0) return comm.send_blocking("x", numbers, 1);
          comm.recv("x", numbers, 0).wait();
        });
      },
      test::over("shm"));
}

}  // namespace
}  // namespace tutti
