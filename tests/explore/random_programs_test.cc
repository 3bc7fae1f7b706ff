// Random programs with all operations of the policy end with the same results, whether or not the
// explorer skips the continuations of states that it has met before.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/explore/explored.h"
#include "tests/explore/explorer.h"

namespace tutti::explore {
namespace {

constexpr int kOperations = 12, kThreads = 3;

struct Operation {
  int kind, which;
};
using Program = std::vector<std::vector<Operation>>;

struct Common {
  std::array<Atomic<int>, 2> atomics;
  Mutex mutex;
  Condition condition;
  Bell bell;
  int guarded = 0;                         // protected by the mutex
  std::array<std::string, kThreads> seen;  // the values that each thread has seen
};

Program draw(int seed) {
  std::mt19937 random(seed);
  Program program(2 + random() % (kThreads - 1));
  for (auto& thread : program)
    for (size_t i = 0; i < 9 / program.size(); ++i)
      thread.push_back({static_cast<int>(random() % kOperations), static_cast<int>(random() % 2)});
  return program;
}

// Runs one operation and returns what this thread sees.
std::string run(Common& state, Operation operation, int value) {
  const auto which = operation.which;
  auto& atomic = state.atomics[which];
  switch (operation.kind) {
    case 0:
      return std::to_string(atomic.load(std::memory_order_relaxed));
    case 1:
      return std::to_string(atomic.load(std::memory_order_acquire));
    case 2:
      return atomic.store(value, std::memory_order_relaxed), "";
    case 3:
      return atomic.store(value, std::memory_order_release), "";
    case 4:
      return atomic.store(value), "";
    case 5:
      return std::to_string(atomic.fetch_add(100));
    case 6: {
      const std::lock_guard lock(state.mutex);
      state.guarded = state.guarded * 3 + value;
      return std::to_string(state.guarded);
    }
    case 7: {
      std::unique_lock lock(state.mutex);
      const auto ends = Explored::now() + std::chrono::seconds(1 + which);
      const bool is_late = state.condition.wait_until(lock, ends) == std::cv_status::timeout;
      return is_late ? "late" : "woken";
    }
    case 8:
      return which == 0 ? state.condition.notify_one() : state.condition.notify_all(), "";
    case 9:
      return which == 0 ? state.bell.ring() : state.bell.silence(), "";
    case 10:
      return state.bell.wait(std::chrono::microseconds(1000 * which)) ? "rung" : "silent";
    default:
      for (int i = 0; i < 2 && atomic.load() == 0; ++i) Explored::pause();
      return std::to_string(atomic.load());
  }
}

std::set<std::string> ways_to_end(const Program& program, Bounds bounds) {
  std::set<std::string> ways;
  const auto outcome = explore(
      [&](Model& model) {
        auto state = std::make_shared<Common>();
        for (size_t i = 0; i < program.size(); ++i)
          model.thread(fmt::format("thread {}", i), [&, state, i] {
            int value = static_cast<int>(10 * i);
            for (const auto& operation : program[i])
              state->seen[i] += run(*state, operation, ++value) + " ";
          });
        model.finally([&ways, state] {
          std::string way = fmt::format("{} {} {}", state->atomics[0].load(),
                                        state->atomics[1].load(), state->guarded);
          for (const auto& seen : state->seen) way += " | " + seen;
          ways.insert(way);
        });
      },
      bounds);
  EXPECT_EQ(outcome.failure, "") << outcome.trace;
  EXPECT_TRUE(outcome.complete);
  return ways;
}

TEST(Explorer, SkipsNothingNew) {
#ifdef TUTTI_EVERY_DAY
  constexpr int kPrograms = 100;
#else
  constexpr int kPrograms = 10000;
#endif
  size_t ways = 0;
  for (int seed = 0; seed < kPrograms; ++seed) {
    const auto program = draw(seed);
    const auto found = ways_to_end(program, {.cost = 2});
    EXPECT_EQ(found, ways_to_end(program, {.cost = 2, .skips_known_states = false}))
        << "seed " << seed;
    ways += found.size();
  }
  EXPECT_GT(ways, 4u * kPrograms);
}

}  // namespace
}  // namespace tutti::explore
