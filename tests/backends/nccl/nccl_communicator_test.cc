// Communicators on device memory over the nccl backend, with the fake device and the fake NCCL.
// Covers the user's calls in stream order, plans, vetoes and faults.

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <mutex>
#include <numeric>
#include <thread>

#include "tests/backends/fake_nccl/judge.h"
#include "tests/backends/nccl/nccl_ranks.h"
#include "tests/support/expect_error.h"
#include "tests/support/scratch_folder.h"
#include "tutti/kernels/reduce.h"

namespace tutti::test {
namespace {

const bool judged = FakeNcclJudge::install();

// That the sums of all these are right, the API suite shows over nccl, too.
TEST(NcclCommunicator, WhatNcclLacksGoesThroughHostMemoryAndSaysSoOnceEach) {
  std::mutex mutex;
  std::vector<std::string> lines;
  run_nccl(
      3,
      [](Communicator& comm) {
        UserStream stream;
        for (int d = 0; d < kDataTypeCount; ++d)
          for (int o = 0; o < kReduceOpCount; ++o) {
            const auto dtype = static_cast<DataType>(d);
            const auto op = static_cast<ReduceOp>(o);
            if (!can_reduce(dtype, op)) continue;
            const auto name = fmt::format("{} {}", to_string(dtype), to_string(op));
            const auto tensor = stream.make(Shape{33}, dtype, [](int64_t) { return 1; });
            comm.allreduce(name, stream.view(tensor), op).wait_on(stream.get());
            const bool adds = op == ReduceOp::sum && dtype != DataType::boolean;
            stream.expect(tensor, [&](int64_t) { return adds ? 3 : 1; });
          }
      },
      [&](Options& options) {
        options.log_level = LogLevel::info;
        options.log = [&](LogLevel, std::string_view line) {
          const std::lock_guard lock(mutex);
          lines.emplace_back(line);
        };
      });
  const auto count = [&](const std::string& text) {
    return std::count_if(lines.begin(), lines.end(),
                         [&](const std::string& line) { return line.find(text) != line.npos; });
  };
  EXPECT_EQ(count("does not run allreduce of i32 with band on fake:0: it goes through host"), 1);
  EXPECT_EQ(count("allreduce of f32"), 0);
  EXPECT_GT(FakeNccl::completed(), 100);
}

TEST(NcclCommunicator, AScoreForAnotherBackendMovesMemoryOfTheHostOnly) {
  run_nccl(
      2,
      [](Communicator& comm) {
        UserStream stream;
        for (int step = 0; step < 12; ++step) {
          const auto tensor = stream.make(Shape{1000}, DataType::f32, [&](int64_t i) {
            return static_cast<double>(comm.rank() + 1 + step + i % 5);
          });
          std::vector<float> host(1000, static_cast<float>(comm.rank() + step));
          auto work = comm.allreduce("device", stream.view(tensor), ReduceOp::sum);
          work.wait_on(stream.get());
          comm.allreduce("host", host, ReduceOp::sum).wait();
          stream.expect(tensor, [&](int64_t i) {
            return rank_sum(2) + 2 * static_cast<double>(step + i % 5);
          });
          ASSERT_EQ(host[999], static_cast<float>(1 + 2 * step));
          work.wait();
        }
      },
      [](Options& options) { options.algorithms = "allreduce:0-inf=tcp/ring"; });
}

TEST(NcclCommunicator, EveryOtherKind) {
  run_nccl(4, [](Communicator& comm) {
    UserStream stream;
    const int rank = comm.rank(), size = comm.size();
    const auto mine = [&](int64_t rows) {
      return stream.make(Shape{rows, 2}, DataType::i16, [rank](int64_t) { return rank + 1; });
    };
    for (const int64_t spread : {0, 1}) {  // equal rows, then unequal rows
      SCOPED_TRACE(spread);
      const auto rows_of = [&](int r) { return 2 + spread * r; };
      const auto all = mine(rows_of(rank));
      auto work = comm.allgather("allgather", stream.view(all));
      const auto gathered = work.output();
      EXPECT_EQ(gathered.device(), kFake);
      int64_t total = 0;
      for (int r = 0; r < size; ++r) total += rows_of(r);
      ASSERT_EQ(gathered.count(), total * 2);
      const auto owner = [&](int64_t i) {
        int r = 0;
        for (int64_t row = i / 2; row >= rows_of(r); ++r) row -= rows_of(r);
        return r + 1.0;
      };
      stream.expect(gathered, owner);
      auto gather = comm.gather("gather", stream.view(all), 1);
      if (rank == 1) stream.expect(gather.output(), owner);
      gather.wait();

      // Rank r sends 1 + spread * p rows to rank p.
      std::vector<int64_t> splits;
      for (int p = 0; p < size; ++p) splits.push_back(1 + spread * p);
      const auto sent = mine(std::accumulate(splits.begin(), splits.end(), int64_t{0}));
      const auto received = comm.alltoall("alltoall", stream.view(sent), splits).output();
      const int64_t from_each = (1 + spread * rank) * 2;
      stream.expect(received, [&](int64_t i) { return static_cast<double>(i / from_each + 1); });

      const auto whole =
          stream.make(Shape{4 + spread, 3}, DataType::f32, [rank](int64_t i) { return i + rank; });
      const auto part =
          comm.reduce_scatter("reduce_scatter", stream.view(whole), {.op = ReduceOp::average})
              .output();
      const int64_t first = (rank + (spread > 0 && rank > 0 ? 1 : 0)) * 3;
      stream.expect(part, [&](int64_t i) { return static_cast<double>(first + i) + 1.5; });
    }
    const auto value = stream.make(Shape{100}, DataType::f64, [rank](int64_t) { return rank; });
    comm.broadcast("broadcast", stream.view(value), 2).wait_on(stream.get());
    stream.expect(value, [](int64_t) { return 2; });
    const auto output = stream.make(Shape{100}, DataType::f64, [](int64_t) { return -1; });
    comm.reduce("reduce", stream.view(value), stream.view(output), 3, ReduceOp::sum)
        .wait_on(stream.get());
    stream.expect(output, [&](int64_t) { return rank == 3 ? 8 : -1; });
    const auto message = stream.make(Shape{7}, DataType::u16, [rank](int64_t) { return rank; });
    if (rank < 2) {
      auto work = rank == 0 ? comm.send("pair", stream.view(message), 1)
                            : comm.recv("pair", stream.view(message), 0);
      work.wait_on(stream.get());
      stream.expect(message, [](int64_t) { return 0; });
    }
    comm.barrier("end").wait();
  });
  EXPECT_GT(FakeNccl::completed(), 0);
}

// Everything is in the order of the user's stream, and the host never waits.
TEST(NcclCommunicator, StepsAreReplayedInStreamOrder) {
  run_nccl(
      3,
      [](Communicator& comm) {
        const auto waits = device().synchronize_count();
        train(comm, false, [&] { EXPECT_EQ(device().synchronize_count(), waits); });
      },
      [](Options& options) { options.fusion_bytes = 2000; });
}

TEST(NcclCommunicator, VetoedBucketsAreDroppedWholeAndRunAgain) {
  run_nccl(3, leave_the_plan, [](Options& options) { options.fusion_bytes = 200; });
}

TEST(NcclCommunicator, GroupsJoinedRanksAndProcessSets) {
  run_nccl(3, [](Communicator& comm) {
    UserStream stream;
    const int rank = comm.rank();
    const auto a = stream.make(Shape{5}, DataType::f32, [&](int64_t) { return rank + 1; });
    const auto b = stream.make(Shape{9}, DataType::f16, [&](int64_t) { return rank + 2; });
    const NamedTensor group[] = {{"a", stream.view(a)}, {"b", stream.view(b)}};
    comm.grouped_allreduce("group", group, {.op = ReduceOp::sum}).wait_on(stream.get());
    stream.expect(a, [](int64_t) { return 6; });
    stream.expect(b, [](int64_t) { return 9; });

    // A rank without data has no effect on the result, whatever the op.
    if (rank < 2) {
      for (const auto op : {ReduceOp::min, ReduceOp::average, ReduceOp::product}) {
        const auto c = stream.make(Shape{70}, DataType::f32, [&](int64_t) { return rank + 3; });
        comm.allreduce(fmt::format("c {}", to_string(op)), stream.view(c), op)
            .wait_on(stream.get());
        stream.expect(c, [&](int64_t) {
          return op == ReduceOp::min ? 3 : op == ReduceOp::average ? 3.5 : 12;
        });
      }
    }
    comm.join().wait();

    const auto set = comm.split(rank % 2, rank);
    const auto d = stream.make(Shape{4}, DataType::i32, [&](int64_t) { return rank + 1; });
    set->allreduce("d", stream.view(d), ReduceOp::sum).wait_on(stream.get());
    stream.expect(d, [&](int64_t) { return rank % 2 ? 2 : 4; });
    comm.barrier("end").wait();
  });
}

TEST(NcclCommunicator, TheWrongDeviceIsRefused) {
  run_nccl(2, [](Communicator& comm) {
    std::vector<float> memory(4);
    const TensorView view(memory.data(), Shape{4}, DataType::f32, {DeviceKind::fake, 1});
    expect_error(ErrorCode::invalid_argument,
                 "lives on fake:1, but this communicator works on fake:0; give "
                 "it memory of that device",
                 [&] { return comm.allreduce("x", view); });
    comm.barrier("end").wait();
  });
}

// --- faults -------------------------------------------------------------------------------------

// NCCL hangs on a rank that then leaves. The other ranks get its number in time, their streams
// continue, and they go on without it.
TEST(NcclCommunicator, ARankThatHangsAndLeavesIsNamed) {
  std::atomic<int> errors{0};
  run_nccl(3, [&](Communicator& comm) {
    UserStream stream;
    const auto first = stream.make(Shape{10}, DataType::f32, [](int64_t) { return 1; });
    comm.allreduce("first", stream.view(first)).wait();
    comm.barrier("all are here").wait();
    if (comm.rank() == 0) FakeNccl::hang(2);
    comm.barrier("it hangs").wait();
    const auto tensor = stream.make(Shape{1000}, DataType::f32, [](int64_t) { return 1; });
    auto work = comm.allreduce("stuck", stream.view(tensor), ReduceOp::sum);
    if (comm.rank() == 2) {
      // All ranks are inside the transfer by now.
      std::this_thread::sleep_for(std::chrono::seconds(1));
      return;
    }
    work.wait_on(stream.get());
    const auto begin = Clock::now();
    const auto error = error_of([&] { work.wait(); });
    EXPECT_EQ(error.rank(), 2) << error.what();
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(3));
    device().synchronize(stream.get());
    ++errors;
    const auto rest = comm.shrink();
    const auto again = stream.make(Shape{30}, DataType::f32, [&](int64_t) { return rest->rank(); });
    rest->allreduce("again", stream.view(again), ReduceOp::sum).wait_on(stream.get());
    stream.expect(again, [](int64_t) { return 1; });
    rest->barrier("end").wait();
  });
  EXPECT_EQ(errors, 2);
  EXPECT_GT(FakeNccl::aborts(), 0);
}

// After a broken communicator has refused a Work, the caller may free the tensors: nothing uses
// them any more.
TEST(NcclCommunicator, WhoIsRefusedHasNothingUnderWay) {
  run_nccl(2, [](Communicator& comm) {
    UserStream stream;
    const auto tensor = stream.make(Shape{200'000}, DataType::f32, [](int64_t) { return 1; });
    comm.allreduce("first", stream.view(tensor)).wait();
    comm.barrier("all are here").wait();
    if (comm.rank() == 0) FakeNccl::hang(1);
    comm.barrier("it hangs").wait();
    auto stuck = comm.allreduce("stuck", stream.view(tensor), ReduceOp::sum);
    if (comm.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      return;
    }
    const auto deadline = Deadline::after(10);
    const auto error = error_of([&] {
      for (int i = 0; !deadline.passed(); ++i) {
        static_cast<void>(comm.barrier(fmt::format("b{}", i)));
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    });
    EXPECT_TRUE(stuck.done()) << error.what();
  });
}

TEST(NcclCommunicator, AnAsynchronousErrorEndsTheCommunicator) {
  run_nccl(2, [](Communicator& comm) {
    UserStream stream;
    comm.barrier("all are here").wait();
    if (comm.rank() == 0) {
      FakeNccl::fail(0, 6);
      FakeNccl::hang(1);
    }
    comm.barrier("it fails").wait();
    const auto tensor = stream.make(Shape{1000}, DataType::f32, [](int64_t) { return 1; });
    auto work = comm.allreduce("broken", stream.view(tensor), ReduceOp::sum);
    const auto begin = Clock::now();
    EXPECT_THROW(work.wait(), Error);
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(3));
  });
}

TEST(NcclCommunicator, TheTimelineHasTheDevicesParts) {
  const ScratchFolder folder;
  const auto file = folder.path() + "/trace.json";
  run_nccl(2,
           [&](Communicator& comm) {
             comm.start_timeline(file);
             UserStream stream;
             const auto tensor =
                 stream.make(Shape{100}, DataType::f32, [](int64_t) { return 1.0; });
             for (int step = 0; step < 8; ++step)
               comm.allreduce("gradient", stream.view(tensor), {.op = ReduceOp::max, .prescale = 2})
                   .wait();
             comm.broadcast("all", stream.view(tensor)).wait();
             // Timeline events of the last operations may arrive after their Works end.
             std::this_thread::sleep_for(std::chrono::milliseconds(50));
             comm.stop_timeline();
           },
           {});
  std::ifstream stream(file);
  const std::string trace((std::istreambuf_iterator<char>(stream)), {});
  for (const auto* row : {"device: pack", "device: reduce", "device: unpack", "device: move"})
    EXPECT_THAT(trace, testing::HasSubstr(row));
}

}  // namespace
}  // namespace tutti::test
