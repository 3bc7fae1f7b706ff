// Small programs with known outcomes. They show that the explorer finds exactly what can happen.
#include "tests/explore/explorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>

#include "tests/explore/expectations.h"
#include "tests/explore/explored.h"

namespace tutti::explore {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// --- interleavings ---

Outcome counting(bool in_one_step, int threads, Bounds bounds = kTwo) {
  return explore(
      [=](Model& model) {
        auto count = std::make_shared<Atomic<int>>(0);
        name(count.get(), "count");
        for (int i = 0; i < threads; ++i)
          model.thread("counter " + std::to_string(i), [=] {
            if (in_one_step)
              ++*count;
            else
              count->store(count->load() + 1);
          });
        model.finally([=] { require(count->load() == threads, "one was not counted"); });
      },
      bounds);
}

TEST(Explorer, ALoadAndAStoreLoseAnUpdate) {
  const auto outcome = counting(false, 2);
  EXPECT_EQ(outcome.failure, "one was not counted");
  // The simplest failing run: the first thread reads, then the second one runs completely.
  EXPECT_EQ(outcome.trace,
            "  counter 0    load count = 0\n"
            "  counter 1    load count = 0\n"
            "  counter 1    store count = 1\n"
            "  counter 1    ends\n"
            "  counter 0    store count = 1\n"
            "  counter 0    ends\n"
            "  the model    load count = 1\n");
  expect_none(counting(true, 2));
  expect_none(counting(true, 4));
}

TEST(Explorer, WithoutPreemptionsAnUpdateIsNotLost) {
  expect_none(counting(false, 2, {.cost = 0}));
}

TEST(Explorer, AFailureIsTheSameEachTime) {
  const auto first = counting(false, 3), second = counting(false, 3);
  EXPECT_EQ(first.runs, second.runs);
  EXPECT_EQ(first.failure, second.failure);
  EXPECT_EQ(first.trace, second.trace);
  EXPECT_EQ(counting(true, 3).runs, counting(true, 3).runs);
}

TEST(Explorer, ACompareExchangeFailsForOneOfTwo) {
  expect_none(explore(
      [](Model& model) {
        struct State {
          Atomic<int> owner{0};
          int winners = 0;
        };
        auto state = std::make_shared<State>();
        for (int i = 1; i <= 2; ++i)
          model.thread("taker " + std::to_string(i), [=] {
            int nobody = 0;
            if (state->owner.compare_exchange_strong(nobody, i, std::memory_order_acq_rel))
              ++state->winners;
            else
              require(nobody == 3 - i, "the value that was there is not told");
          });
        model.finally([=] { require(state->winners == 1, "not one of two"); });
      },
      kTwo));
}

// --- locks and conditions ---

TEST(Explorer, LocksInOppositeOrderAreADeadlock) {
  struct State {
    Mutex a, b;
  };
  const auto locking = [](bool is_opposite) {
    return explore(
        [=](Model& model) {
          auto state = std::make_shared<State>();
          name(&state->a, "a");
          name(&state->b, "b");
          model.thread("first", [=] {
            const std::lock_guard one(state->a);
            const std::lock_guard other(state->b);
          });
          model.thread("second", [=] {
            const std::lock_guard one(is_opposite ? state->b : state->a);
            const std::lock_guard other(is_opposite ? state->a : state->b);
          });
        },
        kTwo);
  };
  EXPECT_EQ(locking(true).failure,
            "deadlock: first waits for b that second holds, second waits for a that first holds");
  expect_none(locking(false));
}

struct Flagged {
  Mutex mutex;
  Condition changed;
  Atomic<bool> flag{false};
};

Outcome waiting_for_a_flag(bool set_with_the_lock, bool notifies) {
  return explore(
      [=](Model& model) {
        auto state = std::make_shared<Flagged>();
        name(&state->changed, "changed");
        model.thread("sleeper", [=] {
          std::unique_lock lock(state->mutex);
          while (!state->flag.load()) state->changed.wait(lock);
        });
        model.thread("waker", [=] {
          if (set_with_the_lock) {
            const std::lock_guard lock(state->mutex);
            state->flag.store(true);
          } else {
            state->flag.store(true);
          }
          if (notifies) state->changed.notify_one();
        });
      },
      kTwo);
}

TEST(Explorer, AFlagThatIsSetWithoutTheLockLosesAWakeUp) {
  EXPECT_EQ(waiting_for_a_flag(false, true).failure, "deadlock: sleeper waits on changed");
  expect_none(waiting_for_a_flag(true, true));
  EXPECT_EQ(waiting_for_a_flag(true, false).failure, "deadlock: sleeper waits on changed");
}

Outcome two_waiters(bool all, bool is_for_both) {
  struct State {
    Mutex mutex;
    Condition changed;
    int tickets = 0;
  };
  return explore(
      [=](Model& model) {
        auto state = std::make_shared<State>();
        for (const auto* thread : {"one", "other"})
          model.thread(thread, [=] {
            std::unique_lock lock(state->mutex);
            state->changed.wait(lock, [&] { return state->tickets > 0; });
            --state->tickets;
          });
        model.thread("giver", [=] {
          const std::lock_guard lock(state->mutex);
          state->tickets = is_for_both ? 2 : 1;
          all ? state->changed.notify_all() : state->changed.notify_one();
        });
      },
      kTwo);
}

TEST(Explorer, NotifyOneWakesOneOfTwo) {
  EXPECT_THAT(two_waiters(false, true).failure, StartsWith("deadlock: "));
  expect_none(two_waiters(true, true));
}

TEST(Explorer, NotifyOneWakesAnyOfTwo) {
  for (const bool first : {true, false}) {
    struct State {
      Mutex mutex;
      Condition changed;
      int waiting = 0;
      bool woken[2] = {false, false};
    };
    const auto outcome = explore(
        [=](Model& model) {
          auto state = std::make_shared<State>();
          for (const int i : {0, 1})
            model.thread(i == 0 ? "one" : "other", [=] {
              std::unique_lock lock(state->mutex);
              ++state->waiting;
              const auto ends = Explored::now() + std::chrono::hours(1);
              state->woken[i] = state->changed.wait_until(lock, ends) != std::cv_status::timeout;
            });
          model.thread("waker", [=] {
            std::unique_lock lock(state->mutex);
            if (state->waiting == 2) state->changed.notify_one();
          });
          model.finally([=] {
            if (state->waiting == 2)
              require(!state->woken[first ? 0 : 1] || state->woken[first ? 1 : 0],
                      "it was this one");
          });
        },
        {.cost = 0});
    EXPECT_EQ(outcome.failure, "it was this one");
  }
}

TEST(Explorer, AWaitMayEndForNoReason) {
  const auto outcome = explore(
      [](Model& model) {
        auto state = std::make_shared<Flagged>();
        model.thread("sleeper", [=] {
          std::unique_lock lock(state->mutex);
          if (!state->flag.load()) state->changed.wait(lock);
          require(state->flag.load(), "a wait without a loop");
        });
        model.thread("waker", [=] {
          const std::lock_guard lock(state->mutex);
          state->flag.store(true);
          state->changed.notify_one();
        });
      },
      kTwo);
  EXPECT_EQ(outcome.failure, "a wait without a loop");
  EXPECT_THAT(outcome.trace, HasSubstr("(for no reason)"));
}

// --- time ---

TEST(Explorer, ATimeoutMayComeFirst) {
  const auto timing = [](Clock::duration most, Bounds bounds) {
    return explore(
        [=](Model& model) {
          auto state = std::make_shared<Flagged>();
          model.thread("sleeper", [=] {
            std::unique_lock lock(state->mutex);
            const auto ends =
                most == Clock::duration::max() ? Clock::time_point::max() : Explored::now() + most;
            const bool is_set =
                state->changed.wait_until(lock, ends, [&] { return state->flag.load(); });
            require(is_set || Explored::now() >= ends, "a timeout before its time");
            require(is_set, "timeout");
          });
          model.thread("waker", [=] {
            const std::lock_guard lock(state->mutex);
            state->flag.store(true);
            state->changed.notify_one();
          });
        },
        bounds);
  };
  EXPECT_EQ(timing(std::chrono::hours(1), kTwo).failure, "timeout");
  expect_none(timing(Clock::duration::max(), kTwo));
}

TEST(Explorer, ATimeoutEndsWhatNothingElseEnds) {
  for (const bool has_deadline : {true, false}) {
    const auto outcome = explore(
        [=](Model& model) {
          auto state = std::make_shared<Flagged>();
          model.thread("sleeper", [=] {
            std::unique_lock lock(state->mutex);
            const auto ends = Explored::now() + std::chrono::hours(1);
            if (!has_deadline) state->changed.wait(lock);
            while (state->changed.wait_until(lock, ends) != std::cv_status::timeout) {
            }
            require(Explored::now() >= ends, "a timeout before its time");
          });
          model.thread("other sleeper", [=] {
            const auto ends = Explored::now() + std::chrono::minutes(2);
            const Bell bell;
            require(!bell.wait(std::chrono::minutes(2)), "nobody rang");
            require(Explored::now() >= ends, "a timeout before its time");
          });
        },
        {.cost = 0});
    if (has_deadline)
      expect_none(outcome);
    else
      EXPECT_THAT(outcome.failure, StartsWith("deadlock: sleeper waits on condition 1"));
  }
}

// --- spinning ---

TEST(Explorer, ASpinEndsOnceAnotherThreadWrites) {
  for (const bool writes : {true, false}) {
    const auto outcome = explore(
        [=](Model& model) {
          auto flag = std::make_shared<Atomic<bool>>(false);
          model.thread("spinner", [=] {
            while (!flag->load(kAcquire)) Explored::pause();
          });
          model.thread("writer", [=] {
            if (writes) flag->store(true, kRelease);
          });
        },
        kTwo);
    if (writes)
      expect_none(outcome);
    else
      EXPECT_EQ(outcome.failure,
                "threads look for what nobody writes any more: spinner looks again and again");
  }
}

TEST(Explorer, ABoundedSpinEnds) {
  expect_none(explore(
      [](Model& model) {
        model.thread("spinner", [] {
          for (int i = 0; i < 100; ++i) Explored::pause();
        });
        model.thread("spinner until a deadline", [] {
          const auto ends = Explored::now() + std::chrono::seconds(10);
          while (Explored::now() < ends) Explored::yield();
        });
      },
      kTwo));
}

// The spinner gives up before the writer has written.
TEST(Explorer, ABoundedSpinMayBeTooShort) {
  const auto outcome = explore(
      [](Model& model) {
        auto flag = std::make_shared<Atomic<bool>>(false);
        model.thread("spinner", [=] {
          for (int i = 0; i < 5; ++i) {
            if (flag->load(kAcquire)) return;
            Explored::pause();
          }
          require(false, "gave up");
        });
        model.thread("writer", [=] { flag->store(true, kRelease); });
      },
      {.cost = 1});
  EXPECT_EQ(outcome.failure, "gave up");
}

TEST(Explorer, SpinLocksOfTwoEnd) {
  expect_none(explore(
      [](Model& model) {
        struct State {
          Atomic<bool> is_locked{false};
          int inside = 0;
        };
        auto state = std::make_shared<State>();
        for (const auto* thread : {"first", "second", "third"})
          model.thread(thread, [=] {
            while (state->is_locked.exchange(true, kAcquire)) Explored::pause();
            Explored::writes(&state->inside);
            require(++state->inside == 1, "two are inside");
            --state->inside;
            state->is_locked.store(false, kRelease);
          });
      },
      kTwo));
}

// --- waits on atomics, and bells ---

TEST(Explorer, AMissedNotifyIsADeadlock) {
  for (const bool notifies : {true, false}) {
    const auto outcome = explore(
        [=](Model& model) {
          auto flag = std::make_shared<Atomic<int>>(0);
          name(flag.get(), "flag");
          model.thread("sleeper", [=] { flag->wait(0, kAcquire); });
          model.thread("waker", [=] {
            flag->store(1, kRelease);
            if (notifies) flag->notify_one();
          });
        },
        kTwo);
    if (notifies)
      expect_none(outcome);
    else
      EXPECT_EQ(outcome.failure, "deadlock: sleeper waits for a notify of flag");
  }
}

// A sleeper publishes that it sleeps and checks again. A ringer publishes its data and checks for
// sleepers.
Outcome bell_of_a_sleeper(bool has_fences) {
  struct State {
    Atomic<bool> is_there{false}, sleeps{false};
    Bell bell;
  };
  return explore(
      [=](Model& model) {
        auto state = std::make_shared<State>();
        name(&state->bell, "bell");
        model.thread("sleeper", [=] {
          state->sleeps.store(true, kRelease);
          if (has_fences) Explored::fence();
          while (!state->is_there.load(kAcquire)) {
            require(state->bell.wait(std::chrono::microseconds::max()), "a wait without an end");
            state->bell.silence();
          }
        });
        model.thread("ringer", [=] {
          state->is_there.store(true, kRelease);
          if (has_fences) Explored::fence();
          if (state->sleeps.load(kAcquire)) state->bell.ring();
        });
      },
      kTwo);
}

TEST(Explorer, ASleeperWithoutAFenceIsNotRung) {
  EXPECT_EQ(bell_of_a_sleeper(false).failure, "deadlock: sleeper listens to bell");
  expect_none(bell_of_a_sleeper(true));
}

// --- runs that fail ---

TEST(Explorer, AnExceptionIsAFailure) {
  const auto outcome = explore(
      [](Model& model) { model.thread("thrower", [] { throw std::runtime_error("no more"); }); });
  EXPECT_EQ(outcome.failure, "thrower threw: no more");
}

TEST(Explorer, EndlessRunsAreFailures) {
  const auto outcome = explore(
      [](Model& model) {
        auto flag = std::make_shared<Atomic<int>>(0);
        model.thread("runner", [=] {
          while (flag->load() >= 0) ++*flag;
        });
      },
      {.cost = 0, .steps = 100});
  EXPECT_EQ(outcome.failure, "more than 100 steps");
}

TEST(Explorer, AnObjectThatIsGoneIsNotUsed) {
  const auto outcome = explore(
      [](Model& model) {
        struct State {
          std::unique_ptr<Atomic<int>> count = std::make_unique<Atomic<int>>(0);
        };
        auto state = std::make_shared<State>();
        auto* count = state->count.get();
        alignas(8) static std::byte memory[sizeof(Atomic<int>)];
        auto* gone = new (memory) Atomic<int>(0);
        static_cast<void>(count);
        model.thread("owner", [=] { gone->~Atomic(); });
        model.thread("user", [=] { ++*gone; });
      },
      kTwo);
  EXPECT_EQ(outcome.failure, "user uses an object that is gone, or was made for another run");
}

TEST(Explorer, GivesUpAfterSoManyRuns) {
  const auto outcome = counting(true, 4, {.cost = 2, .runs = 10});
  EXPECT_EQ(outcome.failure, "");
  EXPECT_EQ(outcome.runs, 10u);
  EXPECT_FALSE(outcome.complete);
}

// Each fiber has its own exceptions, even if a fiber switches to another within a catch block.
TEST(Explorer, ThreadsSwitchWhileTheyCatch) {
  expect_none(explore(
      [](Model& model) {
        auto count = std::make_shared<Atomic<int>>(0);
        for (const auto* thread : {"first", "second"})
          model.thread(thread, [=] {
            const std::string name = thread;
            try {
              throw std::runtime_error(name);
            } catch (const std::exception&) {
              ++*count;
              try {
                throw;
              } catch (const std::exception& error) {
                require(error.what() == name, "another thread's exception");
              }
            }
          });
      },
      kTwo));
}

}  // namespace
}  // namespace tutti::explore
