// The bell that wakes the engine's thread. In tests/explore threads ring it at any moment.

#include "tutti/core/threads/wake_bell.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>

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

// A ringing thread may write to the descriptor after silence() has cleared the flag.
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

}  // namespace
}  // namespace tutti
