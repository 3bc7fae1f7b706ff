// Two levels whose ranks leave or hang, and two levels that cannot be set up.

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/backends/fake_nccl/judge.h"
#include "tests/backends/nccl/nccl_levels.h"
#include "tests/backends/nccl/nccl_ranks.h"
#include "tests/backends/support/world.h"
#include "tests/support/expect_error.h"
#include "tutti/backends/plugins.h"

namespace tutti::test {
namespace {

const bool judged = FakeNcclJudge::install();

TEST(NcclLevels, ARankOfAnotherHostThatLeavesIsNamed) {
  std::atomic<int> errors{0};
  run_levels(
      kTwoByTwo,
      [&](Communicator& comm) {
        UserStream stream;
        every_op(comm, DataType::f32);
        comm.barrier("all are here").wait();
        const auto tensor = stream.make(Shape{1000}, DataType::f32, [](int64_t) { return 1; });
        if (comm.rank() == 3) return;
        auto work = comm.allreduce("stuck", stream.view(tensor), ReduceOp::sum);
        work.wait_on(stream.get());
        const auto begin = Clock::now();
        const auto error = error_of([&] { work.wait(); });
        EXPECT_EQ(error.rank(), 3) << error.what();
        EXPECT_LT(Clock::now() - begin, std::chrono::seconds(3));
        device().synchronize(stream.get());
        ++errors;
        // The remaining hosts have two ranks and one rank, so operations go through host memory but
        // still work.
        const auto rest = comm.shrink();
        every_op(*rest, DataType::f32);
        rest->barrier("end").wait();
      },
      [](Options& options) { options.peer_timeout = 3; });
  EXPECT_EQ(errors, 3);
}

TEST(NcclLevels, ARankThatHangsInTheInnerLevelAndLeavesIsNamed) {
  std::atomic<int> errors{0};
  run_levels(kTwoByTwo, [&](Communicator& comm) {
    UserStream stream;
    every_op(comm, DataType::f32);
    comm.barrier("all are here").wait();
    if (comm.rank() == 0) FakeNccl::hang(1);  // rank 1 within both hosts: ranks 1 and 3
    comm.barrier("it hangs").wait();
    const auto tensor = stream.make(Shape{1000}, DataType::f32, [](int64_t) { return 1; });
    auto work = comm.allreduce("stuck", stream.view(tensor), ReduceOp::sum);
    if (comm.rank() == 3) {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      return;
    }
    const auto error = error_of([&] { work.wait(); });
    EXPECT_EQ(error.rank(), 3) << error.what();
    ++errors;
  });
  EXPECT_EQ(errors, 3);
  EXPECT_GT(FakeNccl::aborts(), 0);
}

TEST(NcclLevels, NcclIsNoLevelBetweenItself) {
  const auto plugins = load_backends("nccl+nccl", {}, {});
  auto context = thread_context(0, 1, make_memory_store());
  context.name = "nccl+nccl";
  context.plugins = plugins;
  EXPECT_STREQ(error_of([&] { find_backend("hierarchical").connect(context); }).what(),
               "backend nccl works on devices and cannot be the level between hosts of "
               "nccl+nccl; use nccl+tcp, or nccl alone");
}

TEST(NcclLevels, WhatAnyRankLacksIsOneErrorOnAll) {
  const auto plugins = load_backends("nccl+tcp", {}, {});
  const auto heard = connect_refusals(
      find_backend("hierarchical"), 4, ErrorCode::unavailable, [&](Context& context) {
        context.name = "nccl+tcp";
        context.plugins = plugins;
        context.settings["TUTTI_BACKEND_LIBRARY"] =
            context.rank == 3 ? "/nowhere/libnccl.so.2" : TUTTI_FAKE_NCCL;
        for (size_t i = 0; i < 4; ++i) context.places[i].host = fmt::format("host {}", i / 2);
      });
  for (const auto& text : heard)
    EXPECT_THAT(text, testing::HasSubstr("rank 1: NCCL cannot be loaded"));
}

}  // namespace
}  // namespace tutti::test
