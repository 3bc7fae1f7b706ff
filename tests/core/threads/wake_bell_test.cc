// The bell that wakes the engine, against threads that ring it at any moment.

#include "tutti/core/threads/wake_bell.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <barrier>
#include <thread>

namespace tutti {
namespace {

constexpr auto kLong = std::chrono::seconds(20);

TEST(WakeBell, ManyRingsAreOne) {
  WakeBell bell;
  EXPECT_FALSE(bell.wait(std::chrono::microseconds(0)));
  bell.ring();
  bell.ring();
  EXPECT_TRUE(bell.is_rung());
  EXPECT_TRUE(bell.wait(kLong));
  bell.silence();
  EXPECT_FALSE(bell.is_rung());
  EXPECT_FALSE(bell.wait(std::chrono::microseconds(0)));
}

// As one is that its thread rings after silence() has taken down the flag that it had put up.
TEST(WakeBell, ARingWithoutAFlagEndsOneSleep) {
  WakeBell bell;
  const uint64_t one = 1;
  ASSERT_EQ(::write(bell.descriptor(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
  EXPECT_TRUE(bell.wait(kLong));
  bell.slept();
  bell.silence();
  EXPECT_FALSE(bell.wait(std::chrono::microseconds(0)));
  bell.ring();
  EXPECT_TRUE(bell.wait(kLong));
}

// The engine's part, and threads that put something down and ring: none of it is slept over, and
// where nothing is put down any more the bell is silent after the sleeps that it ended.
TEST(WakeBell, NoRingIsLostAndNoneKeepsRinging) {
  constexpr int kRounds = 3000, kRings = 40;
  constexpr size_t kThreads = 3;
  WakeBell bell;
  std::atomic<int> put_down{0};
  std::barrier round(kThreads + 1);
  std::array<std::thread, kThreads> threads;
  for (auto& thread : threads)
    thread = std::thread([&] {
      for (int i = 0; i < kRounds; ++i) {
        round.arrive_and_wait();
        for (int ring = 0; ring < kRings; ++ring) {
          ++put_down;
          bell.ring();
        }
        round.arrive_and_wait();
      }
    });
  int slept_over = 0, kept_ringing = 0;
  for (int i = 0; i < kRounds; ++i) {
    round.arrive_and_wait();
    for (int taken = 0; taken < static_cast<int>(kThreads) * kRings;) {
      bell.silence();
      const int more = put_down.exchange(0);
      taken += more;
      if (more > 0) continue;
      if (!bell.wait(kLong)) ++slept_over;
      bell.slept();
    }
    round.arrive_and_wait();
    int sleeps = 0;
    for (bell.silence(); sleeps < 3 && bell.wait(std::chrono::microseconds(0)); bell.silence()) {
      bell.slept();
      ++sleeps;
    }
    if (sleeps == 3) ++kept_ringing;
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(slept_over, 0);
  EXPECT_EQ(kept_ringing, 0);
}

}  // namespace
}  // namespace tutti
