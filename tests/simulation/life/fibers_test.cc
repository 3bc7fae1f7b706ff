// Tests of the life tier's fibers, and of the store that they share.
#include "tests/simulation/life/fibers.h"

#include <gtest/gtest.h>

#include <mutex>
#include <stdexcept>
#include <string>

#include "tests/simulation/life/sim_store.h"
#include "tutti/base/deadline.h"
#include "tutti/base/error.h"

namespace tutti::simulation {
namespace {

constexpr int64_t kTurns = 10'000;

TEST(Fibers, SleepersWakeInTheOrderOfTheirTimes) {
  std::string order;
  Fibers fibers(1);
  const auto begin = fibers.now();
  for (const int seconds : {3, 1, 2})
    fibers.start(
        [&order, seconds] {
          Clock::sleep_for(std::chrono::seconds(seconds));
          order += std::to_string(seconds);
        },
        begin);
  fibers.run(kTurns);
  EXPECT_EQ(order, "123");
  EXPECT_EQ(Clock::now() - begin, std::chrono::seconds(3));
}

TEST(Fibers, OneThatWaitsForNobodyIsFound) {
  Fibers fibers(1);
  fibers.start([&] { fibers.wait_until(Fibers::Time::max()); }, fibers.now());
  EXPECT_THROW(fibers.run(kTurns), std::runtime_error);
}

TEST(Fibers, OneThatGoesOnForEverIsFound) {
  Fibers fibers(1);
  fibers.start(
      [&] {
        for (int i = 0; i < 1000; ++i) fibers.sleep(1);
      },
      fibers.now());
  EXPECT_THROW(fibers.run(100), std::runtime_error);
  fibers.run(kTurns);
}

TEST(Fibers, EachHasItsOwnExceptions) {
  Fibers fibers(1);
  int caught = 0;
  for (int i = 0; i < 2; ++i)
    fibers.start(
        [&, i] {
          try {
            throw std::runtime_error(std::to_string(i));
          } catch (...) {
            fibers.sleep(0.1 * (i + 1));
            try {
              throw;
            } catch (const std::runtime_error& error) {
              caught += error.what() == std::to_string(i);
            }
          }
        },
        fibers.now());
  fibers.run(kTurns);
  EXPECT_EQ(caught, 2);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(FibersDeathTest, WhoWaitsWithAMutexLockedAborts) {
  EXPECT_DEATH(
      {
        Fibers fibers(1);
        std::mutex mutex;
        fibers.start(
            [&] {
              const std::lock_guard lock(mutex);
              fibers.sleep(1);
            },
            fibers.now());
        fibers.run(kTurns);
      },
      "one waits with a mutex locked");
}
#endif

class SimStoreTest : public testing::TestWithParam<bool> {
 protected:
  // Runs all bodies at the same time.
  void run(std::vector<std::function<void()>> bodies) {
    for (auto& body : bodies) fibers_.start(std::move(body), fibers_.now());
    fibers_.run(kTurns);
  }
  Fibers fibers_{1};
  SimStore store_{fibers_, {.latency = 1e-3, .polls = GetParam()}, 1};
};
INSTANTIATE_TEST_SUITE_P(Ways, SimStoreTest, testing::Bool(),
                         [](const auto& ways) { return ways.param ? "Looks" : "Hears"; });

TEST_P(SimStoreTest, AGetWaitsForTheKey) {
  run({[&] {
         fibers_.sleep(2);
         store_.client()->set("key", "value");
       },
       [&] {
         const auto begin = fibers_.now();
         EXPECT_EQ(store_.client()->get("key", Deadline::after(5)), "value");
         EXPECT_GE(fibers_.now() - begin, std::chrono::seconds(2));
         EXPECT_LT(fibers_.now() - begin, std::chrono::milliseconds(2100));
       }});
}

TEST_P(SimStoreTest, AGetEndsAtItsDeadline) {
  run({[&] {
    const auto begin = fibers_.now();
    EXPECT_THROW(store_.client()->get("key", Deadline::after(1)), Error);
    EXPECT_GE(fibers_.now() - begin, std::chrono::seconds(1));
    EXPECT_LT(fibers_.now() - begin, std::chrono::milliseconds(1100));
  }});
}

TEST_P(SimStoreTest, CountsAndSetsOnce) {
  run({[&] {
    const auto store = store_.client();
    EXPECT_EQ(store->add("n", 2), 2);
    EXPECT_EQ(store->add("n", -3), -1);
    EXPECT_EQ(store->raise("n", 4), 4);
    EXPECT_EQ(store->raise("n", 1), 4);
    EXPECT_EQ(store->set_once("a/b", "first"), "first");
    EXPECT_EQ(store->set_once("a/b", "second"), "first");
    EXPECT_EQ(store->try_get("a/b"), "first");
    store->erase_all("a/");
    EXPECT_EQ(store->try_get("a/b"), std::nullopt);
    store->erase("n");
    EXPECT_TRUE(store_.values().empty());
  }});
}

TEST_P(SimStoreTest, ALimitedCallEndsThoughTheStoreIsSlow) {
  store_.be_slow(fibers_.now() + std::chrono::hours(1), 60);
  run({[&] {
    const auto begin = fibers_.now();
    const auto store = bounded(store_.client(), Deadline::after(1));
    EXPECT_THROW(store->try_get("key"), Error);
    EXPECT_LT(fibers_.now() - begin, std::chrono::seconds(2));
  }});
}

TEST_P(SimStoreTest, WhoWasKilledChangesNothing) {
  Fibers::Task& victim = fibers_.start(
      [&] {
        fibers_.sleep(1);
        EXPECT_THROW(store_.client()->set("key", "value"), Error);
      },
      fibers_.now());
  run({[&] { fibers_.kill(victim); }});
  EXPECT_TRUE(victim.is_over());
  EXPECT_TRUE(store_.values().empty());
}

}  // namespace
}  // namespace tutti::simulation
