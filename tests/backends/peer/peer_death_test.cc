// A process dies in the middle of a device operation, or ends after its part of it. The others
// continue and reuse memory and flags that were in use before.

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <thread>
#include <vector>

#include "tests/backends/conformance/user_stream.h"
#include "tests/support/ranks.h"
#include "tests/tensor/fake_device.h"
#include "tutti/base/process/process_state.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;

Tensor ones(int64_t count) {
  Tensor tensor(Shape{count}, DataType::f32, kFake);
  std::fill_n(tensor.as<float>(), count, 1.0f);
  return tensor;
}

TEST(PeerDeath, TheOthersGoOn) {
  run_processes(
      3,
      [](Communicator& comm) {
        {
          auto part = comm.split(0, comm.rank());
          const auto tensor = ones(100'000);
          part->allreduce("warm", tensor).wait();
          part->barrier("all are warm").wait();
          try {
            auto work = part->allreduce("x", tensor);
            std::this_thread::sleep_for(milliseconds(60));  // the operation is in flight
            if (comm.rank() == 2) ::raise(SIGKILL);
            work.wait();
          } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::peer_lost) << error.what();
          }
        }
        auto left = comm.shrink();
        const auto tensor = ones(1000);
        left->allreduce("y", tensor, ReduceOp::sum).wait();
        EXPECT_THAT(tensor.span<float>(), testing::Each(2.0f));
        left->barrier("both have it").wait();
      },
      [](Options& options) {
        static FakeDevice own({.least_delay = milliseconds(20), .most_delay = milliseconds(40)});
        options.backend = "peer";
      },
      60, 2);
}

// Rank 0 closes after the process of rank 1 has ended normally. The slow device of rank 2 is still
// completing the same operation.
TEST(PeerDeath, AProcessThatEndsAfterItsPartSpoilsNoResult) {
  run_processes(
      3,
      [](Communicator& comm) {
        const std::vector<int64_t> own = {::getpid()};
        std::vector<int64_t> pids(3);
        comm.allgather("pids", own, pids).wait();
        const auto tensor = ones(5);
        comm.allreduce("x", tensor, ReduceOp::sum).wait();
        EXPECT_THAT(tensor.span<float>(), testing::Each(3.0f));
        if (comm.rank() != 0) return;
        const auto deadline = Deadline::after(10);
        while (process_state(static_cast<int>(pids[1])) != ProcessState::ended) {
          ASSERT_FALSE(deadline.passed());
          std::this_thread::sleep_for(milliseconds(1));
        }
      },
      [](Options& options) {
        const milliseconds delay(options.rank == 2 ? 300 : 0);
        static FakeDevice own({.least_delay = delay, .most_delay = delay});
        options.backend = "peer";
      },
      60);
}

}  // namespace
}  // namespace tutti::test
