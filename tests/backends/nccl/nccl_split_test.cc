// Communicators that are split from others over the nccl backend, which splits NCCL's communicators
// too.

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <atomic>

#include "tests/backends/fake_nccl/judge.h"
#include "tests/backends/nccl/nccl_ranks.h"
#include "tests/support/expect_error.h"

namespace tutti::test {
namespace {

const bool judged = FakeNcclJudge::install();

// NCCL splits that one communicator makes at its start: one for each stream.
constexpr int kOwnSplits = 2;

void sum_ranks(Communicator& comm, const std::string& name, int64_t count = 100) {
  UserStream stream;
  const auto tensor =
      stream.make(Shape{count}, DataType::f32, [&](int64_t i) { return comm.rank() + i % 7; });
  comm.allreduce(name, stream.view(tensor), ReduceOp::sum).wait_on(stream.get());
  const int size = comm.size();
  stream.expect(tensor, [=](int64_t i) {
    return static_cast<double>(size * (size - 1)) / 2 + static_cast<double>(size * (i % 7));
  });
}

TEST(NcclSplit, PartsComeOfNcclsOwnSplitting) {
  run_nccl(5, [](Communicator& comm) {
    const int rank = comm.rank();
    // The parts are ranks 4 2 0 and ranks 3 1, in this order.
    const auto part = comm.split(rank % 2, -rank);
    EXPECT_EQ(part->size(), rank % 2 ? 2 : 3);
    EXPECT_EQ(part->rank(), (part->size() * 2 - 2 + rank % 2 - rank) / 2);
    UserStream stream;
    const auto value = stream.make(Shape{3}, DataType::i32, [&](int64_t) { return rank; });
    part->broadcast("first", stream.view(value), 0).wait_on(stream.get());
    stream.expect(value, [&](int64_t) { return rank % 2 ? 3 : 4; });
    sum_ranks(*part, "sum");
    const auto pair = part->split(part->rank() < 2 ? 7 : 3, 0);
    sum_ranks(*pair, "pair");
    comm.barrier("end").wait();
  });
  EXPECT_EQ(FakeNccl::unique_ids(), 1);
  // Each rank splits two communicators once, and each of its three communicators splits NCCL at its
  // start.
  EXPECT_EQ(FakeNccl::splits(), 5 * (1 + 1 + 3 * kOwnSplits));
}

TEST(NcclSplit, WhoBelongsToNoPartTakesPartAllTheSame) {
  run_nccl(3, [](Communicator& comm) {
    const auto part = comm.split(comm.rank() == 1 ? -5 : 0, 0);
    ASSERT_EQ(part == nullptr, comm.rank() == 1);
    if (part) sum_ranks(*part, "part");
    sum_ranks(comm, "all");
    comm.barrier("end").wait();
  });
  EXPECT_EQ(FakeNccl::unique_ids(), 1);
  EXPECT_EQ(FakeNccl::splits_without_color(), 1);
}

// Each part works while the other part and the whole communicator stand still. An operation of the
// whole communicator is pending during the split.
TEST(NcclSplit, PartsMoveOnTheirOwn) {
  std::atomic<int> ready{0};
  run_nccl(4, [&](Communicator& comm) {
    UserStream stream;
    const auto pending = stream.make(Shape{1000}, DataType::f32, [](int64_t) { return 1; });
    Work late;
    if (comm.rank() != 3) late = comm.allreduce("late", stream.view(pending), ReduceOp::sum);
    const auto part = comm.split(comm.rank() / 2, 0);
    for (int turn = 0; turn < 2; ++turn) {
      if (turn == comm.rank() / 2)
        for (int step = 0; step < 10; ++step) sum_ranks(*part, fmt::format("step {}", step % 2));
      ++ready;
      while (ready < 4 * (turn + 1)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (comm.rank() == 3) late = comm.allreduce("late", stream.view(pending), ReduceOp::sum);
    late.wait_on(stream.get());
    stream.expect(pending, [](int64_t) { return 4; });
    late.wait();
    comm.barrier("end").wait();
  });
  EXPECT_EQ(FakeNccl::unique_ids(), 1);
}

// After a loss NCCL has nothing left to split, so the survivors meet through the store again.
TEST(NcclSplit, APartShrinks) {
  std::atomic<int> again{0};
  run_nccl(
      4,
      [&](Communicator& comm) {
        const auto part = comm.split(comm.rank() == 3 ? 1 : 0, 0);
        sum_ranks(*part, "all");
        if (comm.rank() == 0) FakeNccl::hang(2);
        comm.barrier("it hangs").wait();
        if (comm.rank() == 2) return;
        if (comm.rank() == 3) {
          sum_ranks(*part, "alone");
        } else {
          UserStream stream;
          const auto tensor = stream.make(Shape{100}, DataType::f32, [](int64_t) { return 1; });
          auto work = part->allreduce("stuck", stream.view(tensor), ReduceOp::sum);
          work.wait_on(stream.get());
          const auto error = error_of([&] { work.wait(); });
          EXPECT_EQ(error.rank(), 2) << error.what();
          const auto rest = part->shrink();
          EXPECT_EQ(rest->size(), 2);
          sum_ranks(*rest, "rest");
          sum_ranks(*rest->split(0, -rest->rank()), "split again");
          rest->barrier("end").wait();
          ++again;
        }
      },
      [](Options& options) { options.peer_timeout = 3; });
  EXPECT_EQ(again, 2);
  EXPECT_EQ(FakeNccl::unique_ids(), 2);
}

TEST(NcclSplit, ARankThatNeverComesIsAnErrorInTime) {
  std::atomic<int> errors{0};
  run_nccl(
      3,
      [&](Communicator& comm) {
        if (comm.rank() == 0) FakeNccl::hang(2);
        comm.barrier("it hangs").wait();
        const auto begin = Clock::now();
        const auto error = error_of([&] { comm.split(0, 0); });
        ++errors;
        EXPECT_THAT(error.what(), testing::HasSubstr("NCCL did not connect the ranks in time"));
        EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
        comm.barrier("end").wait();
      },
      [](Options& options) { options.connect_timeout = 1; });
  EXPECT_EQ(errors, 3);
}

}  // namespace
}  // namespace tutti::test
