// Ranks that are connected and idle use almost no processor time.

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <thread>

#include "tests/support/ranks.h"

namespace tutti {
namespace {

constexpr double kSeconds = 10;

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST(Idle, FourProcessesUseLessThanHalfAPercentOfACore) {
  test::run_processes(4, [](Communicator& comm) {
    std::vector<float> values(1000, 1.0f);
    // No thread waits for these Works, so the background thread runs them and sleeps in between. On
    // a busy machine it may find everything ready each time and never sleep; then another round
    // follows.
    const auto deadline = Deadline::after(30);
    float has_slept = 0;
    while (has_slept == 0 && !deadline.passed()) {
      const auto work = comm.allreduce("warm", values);
      while (!work.done() && !deadline.passed())
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      has_slept = comm.allreduce_blocking("slept", comm.statistics().wakeups > 0 ? 1.0F : 0.0F,
                                          ReduceOp::min);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const double cpu = cpu_seconds();
    const auto wakeups = comm.statistics().wakeups;
    EXPECT_GT(wakeups, 0u);
    std::this_thread::sleep_for(std::chrono::duration<double>(kSeconds));
    EXPECT_LT(cpu_seconds() - cpu, 0.005 * kSeconds);
    EXPECT_LT(comm.statistics().wakeups - wakeups, static_cast<uint64_t>(kSeconds));
    comm.barrier_blocking();
  });
}

}  // namespace
}  // namespace tutti
