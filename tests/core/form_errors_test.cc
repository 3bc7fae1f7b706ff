// Bad input to every form of all kinds. Each rank concerned gets one line, nothing is written, and
// the library goes on.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>

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
using Values = std::vector<float>;

const ReduceOptions kPlainSum{.op = ReduceOp::sum};

TEST(FormErrors, CountsThatDoNotAddUp) {
  run_threads(2, [](Communicator& comm) {
    Values four(4, 1.0f), two(2, -1.0f);
    const int64_t rows[] = {2, 1};
    constexpr const char* kLine =
        "\"x\": rows [2,1] do not divide 4 rows among 2 ranks. Nothing was changed.";
    const auto handle = comm.declare("x", Shape{4}, DataType::f32);
    const auto own = std::span(two).first(comm.rank() == 0 ? 2 : 1);
    for (int step = 0; step < 2; ++step) {
      expect_error(ErrorCode::mismatch, kLine,
                   [&] { comm.reduce_scatter("x", four, own, kPlainSum, rows).wait(); });
      expect_error(ErrorCode::mismatch, kLine,
                   [&] { comm.reduce_scatter(handle, four, own, kPlainSum, rows).wait(); });
      expect_error(ErrorCode::mismatch, kLine,
                   [&] { comm.scatter("x", four, own, 0, rows).wait(); });
      expect_error(ErrorCode::mismatch, kLine, [&] { comm.scatter("x", four, 0, rows).wait(); });
    }
    EXPECT_EQ(two, Values(2, -1.0f));
    still_works(comm);
  });
}

// If the output of one member is too small, the whole group fails on all ranks, and nothing of it
// is written.
TEST(FormErrors, AnOutputTooSmallInAGroup) {
  for (const char* backend : {"memory", "tcp"})
    run_threads(
        3,
        [](Communicator& comm) {
          Values first(2, 1.0f), second(4, 2.0f), all(6, -1.0f), more(12, -1.0f);
          const std::span<float> odd(more.data(), comm.rank() == 2 ? 11 : 12);
          constexpr const char* kLine =
              "\"b\": rank 2 gave an output of 11 rows, but all ranks together sent 12; let the "
              "library make the output or give 12 rows. Nothing was changed.";
          const std::vector<NamedTransfer> group{{"a", first, all}, {"b", second, odd}};
          expect_error(ErrorCode::mismatch, kLine,
                       [&] { comm.grouped_allgather("g", group).wait(); });
          EXPECT_EQ(all, Values(6, -1.0f));
          EXPECT_EQ(more, Values(12, -1.0f));
          const std::vector<NamedTransfer> good{{"a", first, all}, {"b", second, more}};
          comm.grouped_allgather("g", good).wait();
          EXPECT_EQ(more, Values(12, 2.0f));
          still_works(comm);
        },
        over(backend));
}

TEST(FormErrors, WhatAHandleIsGivenMustBeWhatWasDeclared) {
  run_threads(2, [](Communicator& comm) {
    const auto handle = comm.declare("x", Shape{2, 3}, DataType::f32);
    Values six(6, 1.0f), more(12), five(5);
    std::vector<double> doubles(6);
    expect_refused("\"x\": declared as f32[2,3], but f32[5] came",
                   [&] { return comm.broadcast(handle, five, 0); });
    expect_refused("\"x\": declared as f32[2,3], but f64[6] came",
                   [&] { return comm.send(handle, doubles, 1 - comm.rank()); });
    expect_refused("\"x\": declared as f32[2,3], but f32[6] came",
                   [&] { return comm.allgather(handle, six, more); });
    const TensorView rows(six.data(), Shape{2, 3}, DataType::f32),
        all(more.data(), Shape{4, 3}, DataType::f32);
    comm.allgather(handle, rows, all).wait();
    EXPECT_EQ(more, Values(12, 1.0f));
    expect_refused("this TensorHandle was not made by declare() of this Communicator",
                   [&] { return comm.barrier(TensorHandle()); });
    expect_refused("this TensorHandle was not made by declare() of this Communicator",
                   [&] { return comm.recv(TensorHandle(), six, 1 - comm.rank()); });
    still_works(comm);
  });
}

// A step is replayed until a rank asks for another kind or for more elements.
TEST(FormErrors, AKindOrCountThatChangesInAReplayedStep) {
  for (const char* backend : {"memory", "tcp"})
    run_threads(
        3,
        [](Communicator& comm) {
          Values own(4, 1.0f), all(12), long_own(5, 1.0f), long_all(15, -1.0f), sum(4);
          const auto step = [&] {
            comm.allgather("gathered", own, all).wait();
            sum = own;
            comm.allreduce("summed", sum, kPlainSum).wait();
          };
          for (int i = 0; i < 8; ++i) step();
          EXPECT_GT(comm.statistics().replayed_buckets, 0u);
          std::fill(all.begin(), all.end(), -1.0f);
          expect_error(ErrorCode::mismatch,
                       "\"gathered\": ranks 0 1 sent allgather, rank 2 sent broadcast; all ranks "
                       "must submit the same kind of operation. Nothing was changed.",
                       [&] {
                         if (comm.rank() == 2)
                           comm.broadcast("gathered", own, 0).wait();
                         else
                           comm.allgather("gathered", own, all).wait();
                       });
          EXPECT_EQ(all, Values(12, -1.0f));
          for (int i = 0; i < 8; ++i) step();
          std::fill(all.begin(), all.end(), -1.0f);
          expect_error(
              ErrorCode::mismatch,
              "\"gathered\": rank 0 gave an output of 12 rows, but all ranks together "
              "sent 13; let the library make the output or give 13 rows. Nothing was "
              "changed.",
              [&] { comm.allgather("gathered", comm.rank() == 2 ? long_own : own, all).wait(); });
          EXPECT_EQ(all, Values(12, -1.0f));
          for (int i = 0; i < 8; ++i) step();
          EXPECT_EQ(all, Values(12, 1.0f));
          EXPECT_EQ(sum, Values(4, 3.0f));
          still_works(comm);
        },
        over(backend));
}

// The sender gets an error when the operation timeout is over, and so does the rank that never
// receives.
TEST(FormErrors, APeerThatNeverReceives) {
  run_threads(
      2,
      [](Communicator& comm) {
        Values values(4, 1.0f);
        if (comm.rank() == 0) {
          expect_error(ErrorCode::timeout, "\"x\"", [&] { comm.send("x", values, 1).wait(); });
        } else {
          // This rank waits for another operation, which fails for the same reason.
          expect_error(ErrorCode::timeout, "TUTTI_OPERATION_TIMEOUT=1 s",
                       [&] { comm.barrier("never").wait(); });
        }
      },
      [](Options& options) { options.operation_timeout = 1; });
}

// All kinds but allreduce need every rank.
TEST(FormErrors, ARankThatHasJoined) {
  run_threads(2, [](Communicator& comm) {
    if (comm.rank() == 1) {
      comm.join().wait();
      still_works(comm);
      return;
    }
    Values two(2, -1.0f), one(1, -1.0f);
    const auto refused = [&](const char* kind, const std::function<Work()>& call) {
      expect_error(ErrorCode::mismatch,
                   fmt::format("\"x\": {} cannot run while rank 1 has joined (is out of data); "
                               "only allreduce can. Nothing was changed.",
                               kind),
                   [&] { call().wait(); });
    };
    refused("allgather", [&] { return comm.allgather("x", one, two); });
    refused("reduce_scatter", [&] { return comm.reduce_scatter("x", two, one, kPlainSum); });
    refused("broadcast", [&] { return comm.broadcast("x", two); });
    refused("reduce", [&] { return comm.reduce("x", two, two); });
    refused("gather", [&] { return comm.gather("x", one, two); });
    refused("scatter", [&] { return comm.scatter("x", two, one); });
    refused("alltoall", [&] { return comm.alltoall("x", two, two, {}); });
    refused("barrier", [&] { return comm.barrier("x"); });
    refused("send", [&] { return comm.send("x", two, 1); });
    EXPECT_EQ(two, Values(2, -1.0f));
    EXPECT_EQ(one, Values(1, -1.0f));
    comm.join().wait();
    still_works(comm);
  });
}

}  // namespace
}  // namespace tutti
