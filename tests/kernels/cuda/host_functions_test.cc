// The thread that calls functions when flags are stored. The host stores the flags here, instead of
// a GPU's stream.

#include "tutti/kernels/cuda/device/host_functions.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>

namespace tutti::cuda {
namespace {

using namespace std::chrono_literals;

class HostFunctionsTest : public testing::Test {
 protected:
  static void store(uint64_t& word) { std::atomic_ref(word).store(1, std::memory_order_release); }
  // Waits until there are `count` calls and returns them.
  std::vector<int> calls(size_t count) {
    const auto end = std::chrono::steady_clock::now() + 30s;
    while (std::chrono::steady_clock::now() < end) {
      {
        const std::lock_guard lock(mutex_);
        if (calls_.size() >= count) return calls_;
      }
      std::this_thread::sleep_for(1ms);
    }
    return calls_;
  }
  std::function<void()> note(int number) {
    return [this, number] {
      const std::lock_guard lock(mutex_);
      calls_.push_back(number);
    };
  }

  std::mutex mutex_;  // guards the fields below
  std::vector<int> calls_;
  std::atomic<int> given_back_{0};
  const char stream_ = 0, other_ = 0;
  std::array<uint64_t, 4> words_{};
  HostFunctions functions_{[this](uint64_t*) { ++given_back_; }};
};

TEST_F(HostFunctionsTest, AStreamsFunctionsKeepTheirOrderAndOthersPass) {
  for (int i = 0; i < 3; ++i) functions_.add(&stream_, &words_[static_cast<size_t>(i)], note(i));
  functions_.add(&other_, &words_[3], note(3));
  store(words_[2]);
  store(words_[1]);
  store(words_[3]);
  EXPECT_EQ(calls(1), std::vector<int>{3});
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(calls(1), std::vector<int>{3});
  store(words_[0]);
  EXPECT_EQ(calls(4), (std::vector<int>{3, 0, 1, 2}));
  EXPECT_EQ(given_back_, 4);
}

TEST_F(HostFunctionsTest, WhatAFunctionHoldsGoesWithIt) {
  auto held = std::make_shared<int>(1);
  std::weak_ptr<int> seen = held;
  functions_.add(&stream_, &words_[0], [held = std::move(held)] {});
  functions_.add(&stream_, &words_[1],
                 [this, seen] { note(static_cast<int>(seen.use_count()))(); });
  EXPECT_FALSE(seen.expired());
  store(words_[0]);
  store(words_[1]);
  EXPECT_EQ(calls(1), std::vector<int>{0});
}

TEST_F(HostFunctionsTest, TheEndCallsNobody) {
  functions_.add(&stream_, &words_[0], note(0));
  functions_.end();
  store(words_[0]);
  functions_.add(&other_, &words_[0], note(1));
  functions_.end();
  std::this_thread::sleep_for(20ms);
  EXPECT_TRUE(calls_.empty());
}

TEST_F(HostFunctionsTest, AForkEndsWithoutTheThread) {
  functions_.add(&stream_, &words_[0], note(0));
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);
    functions_.end();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  store(words_[0]);
  EXPECT_EQ(calls(1), std::vector<int>{0});
}

}  // namespace
}  // namespace tutti::cuda
