// Small programs with known outcomes. They show how the explorer delays stores, and which accesses
// it reports as a race.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <mutex>

#include "tests/explore/expectations.h"
#include "tests/explore/explored.h"
#include "tests/explore/explorer.h"

namespace tutti::explore {
namespace {

using testing::StartsWith;

// --- store buffers ---

struct Two {
  Atomic<int> x{0}, y{0};
  int seen_by_first = -1, seen_by_second = -1;
};

Outcome store_buffering(std::memory_order order, bool has_fence) {
  return explore(
      [=](Model& model) {
        auto state = std::make_shared<Two>();
        model.thread("first", [=] {
          state->x.store(1, order);
          if (has_fence) Explored::fence();
          state->seen_by_first = state->y.load(kRelaxed);
        });
        model.thread("second", [=] {
          state->y.store(1, order);
          if (has_fence) Explored::fence();
          state->seen_by_second = state->x.load(kRelaxed);
        });
        model.finally([=] {
          require(state->seen_by_first + state->seen_by_second > 0, "both saw nothing");
          require(state->x.load() == 1 && state->y.load() == 1, "a store is lost");
        });
      },
      kTwo);
}

TEST(ExplorerMemory, AStoreMayBeDelayedPastALoad) {
  for (const auto order : {kRelaxed, kRelease})
    EXPECT_EQ(store_buffering(order, false).failure, "both saw nothing");
}

TEST(ExplorerMemory, AFenceOrAStrongStoreIsNotPassed) {
  expect_none(store_buffering(kRelaxed, true));
  expect_none(store_buffering(kStrongest, false));
}

TEST(ExplorerMemory, AThreadSeesItsOwnStores) {
  expect_none(explore(
      [](Model& model) {
        auto state = std::make_shared<Two>();
        model.thread("first", [=] {
          state->x.store(1, kRelaxed);
          state->y.store(1, kRelaxed);
          state->x.store(2, kRelaxed);
          require(state->x.load(kRelaxed) == 2, "its newest store is not seen");
          require(state->y.load(kRelaxed) == 1, "its older store is not seen");
        });
        model.thread("second", [=] {
          if (state->x.load(kRelaxed) == 2) require(state->y.load(kRelaxed) == 1, "out of order");
        });
        model.finally([=] { require(state->x.load() == 2, "the newest store is not the last"); });
      },
      kTwo));
}

// --- release and acquire ---

Outcome message_passing(std::memory_order store, std::memory_order load, bool has_fences = false) {
  struct State {
    Atomic<bool> is_there{false};
    int message = 0;
  };
  return explore(
      [=](Model& model) {
        auto state = std::make_shared<State>();
        name(&state->message, "the message");
        model.thread("writer", [=] {
          Explored::writes(&state->message);
          state->message = 7;
          if (has_fences) Explored::fence();
          state->is_there.store(true, store);
        });
        model.thread("reader", [=] {
          if (!state->is_there.load(load)) return;
          if (has_fences) Explored::fence();
          Explored::reads(&state->message);
          require(state->message == 7, "the flag came before the message");
        });
      },
      kTwo);
}

TEST(ExplorerMemory, RelaxedOrdersNothing) {
  for (const auto& outcome :
       {message_passing(kRelaxed, kAcquire), message_passing(kRelease, kRelaxed)}) {
    EXPECT_EQ(outcome.failure,
              "race: reader reads the message, which writer writes at the same time");
    EXPECT_FALSE(outcome.complete);
  }
}

TEST(ExplorerMemory, ReleaseAndAcquireOrder) {
  expect_none(message_passing(kRelease, kAcquire));
  expect_none(message_passing(kStrongest, kStrongest));
  expect_none(message_passing(kRelaxed, kRelaxed, true));
}

TEST(ExplorerMemory, PlainDataUnderNoLockIsARace) {
  for (const bool has_lock : {false, true}) {
    struct State {
      Mutex mutex;
      int count = 0;
    };
    const auto outcome = explore(
        [=](Model& model) {
          auto state = std::make_shared<State>();
          for (const auto* thread : {"first", "second"})
            model.thread(thread, [=] {
              std::unique_lock lock(state->mutex, std::defer_lock);
              if (has_lock) lock.lock();
              Explored::reads(&state->count);
              Explored::writes(&state->count);
              ++state->count;
            });
          model.finally([=] {
            Explored::reads(&state->count);
            require(state->count == 2, "one was not counted");
          });
        },
        kTwo);
    if (has_lock)
      expect_none(outcome);
    else
      EXPECT_THAT(outcome.failure, StartsWith("race: "));
  }
}

}  // namespace
}  // namespace tutti::explore
