#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>

#include "tests/explore/explorer.h"

namespace tutti::explore {

inline constexpr auto kRelaxed = std::memory_order_relaxed;
inline constexpr auto kAcquire = std::memory_order_acquire;
inline constexpr auto kRelease = std::memory_order_release;
inline constexpr auto kStrongest = std::memory_order_seq_cst;

/// Makes Bell::wait() wait without a limit.
inline constexpr auto kForEver = std::chrono::microseconds::max();

inline constexpr Bounds kTwo{.cost = 2};

/// Expects that the explorer made every run of the model, and that none failed.
inline void expect_none(const Outcome& outcome) {
  EXPECT_EQ(outcome.failure, "") << outcome.trace;
  EXPECT_TRUE(outcome.complete);
  testing::Test::RecordProperty("runs", std::to_string(outcome.runs));
}

}  // namespace tutti::explore
