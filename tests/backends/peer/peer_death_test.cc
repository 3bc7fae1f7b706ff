// A process dies in the middle of an operation on devices; the others go on, in memory and words
// that they have used before.

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <thread>

#include "tests/backends/conformance/user_stream.h"
#include "tests/support/ranks.h"
#include "tests/tensor/fake_device.h"

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
            std::this_thread::sleep_for(milliseconds(60));  // it is on its way
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

}  // namespace
}  // namespace tutti::test
