#include "tutti/core/threads/token.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace tutti {
namespace {

TEST(Token, WaitersComeBeforeTheBackground) {
  Token token;
  ASSERT_TRUE(token.take());
  EXPECT_FALSE(token.take());
  EXPECT_FALSE(token.take_or_sleep());
  EXPECT_FALSE(token.take_in_background_or_park());
  EXPECT_EQ(token.next(), Token::Wake::no_thread);
  EXPECT_FALSE(token.put_back());
  EXPECT_EQ(token.next(), Token::Wake::a_driver);
  EXPECT_EQ(token.waiting_drivers(), 1);
  EXPECT_FALSE(token.take_in_background_or_park());
  token.driver_wakes();
  EXPECT_EQ(token.next(), Token::Wake::the_background);
  token.background_unparks();
  EXPECT_TRUE(token.take_in_background_or_park());
  EXPECT_TRUE(token.put_back());
}

// Threads that take the token immediately and threads that sleep for it exclude each other. Each
// sees the writes of the previous holder.
TEST(Token, ThreadsTakeTurns) {
  constexpr int kThreads = 4, kTurns = 20'000;
  Token token;
  std::mutex mutex;
  std::condition_variable free;
  int64_t turns = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread)
    threads.emplace_back([&] {
      for (int turn = 0; turn < kTurns; ++turn) {
        if (!token.take()) {
          std::unique_lock lock(mutex);
          while (!token.take_or_sleep()) {
            free.wait(lock);
            token.driver_wakes();
          }
        }
        ++turns;
        if (token.put_back()) continue;
        const std::lock_guard lock(mutex);
        if (token.next() == Token::Wake::a_driver) free.notify_all();
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(turns, kThreads * kTurns);
  EXPECT_FALSE(token.held());
}

}  // namespace
}  // namespace tutti
