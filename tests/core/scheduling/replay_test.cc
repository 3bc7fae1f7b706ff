// Repeated steps: the ranks learn a plan, replay it without a message, and give it up.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>
#include <thread>

#include "tests/support/ranks.h"
#include "tests/support/wait_until.h"
#include "tutti/core/communicator.h"

namespace tutti {
namespace {

using test::run_threads;

void small_buckets(Options& options) {
  options.fusion_bytes = 20000;
  options.partition_bytes = 3000;
  options.segment_bytes = 2000;
}

TEST(Communicator, AnyOrderOfSubmissionAndThenWithoutNegotiation) {
  for (const int size : {1, 2, 4})
    run_threads(
        size,
        [&](Communicator& comm) {
          constexpr int kTensors = 40, kSteps = 60;
          std::mt19937 random(static_cast<unsigned>(comm.rank()));
          std::vector<std::vector<float>> gradients(kTensors);
          for (int step = 0; step < kSteps; ++step) {
            std::vector<int> order(kTensors);
            std::iota(order.begin(), order.end(), 0);
            std::shuffle(order.begin(), order.end(), random);
            std::vector<Work> works;
            for (const int t : order) {
              auto& gradient = gradients[static_cast<size_t>(t)];
              gradient.assign(static_cast<size_t>(t * 37 + 1),
                              static_cast<float>(comm.rank() + step));
              works.push_back(comm.allreduce("t" + std::to_string(t), gradient, ReduceOp::sum));
            }
            for (auto& work : works) work.wait();
            const auto expected = static_cast<float>(size * step + size * (size - 1) / 2);
            for (const auto& gradient : gradients)
              for (const float value : gradient)
                if (value != expected) {
                  ASSERT_EQ(value, expected) << "step " << step;
                }
          }
          const auto statistics = comm.statistics();
          EXPECT_EQ(statistics.plans_locked, 1u);
          EXPECT_GT(statistics.replayed_buckets, statistics.buckets / 2);
          EXPECT_EQ(statistics.vetoed_buckets, 0u);
        },
        small_buckets);
}

// "a" waits for "b", the rest of its bucket, and the engine sleeps. "other" is not in the plan, is
// much smaller than "b", and no thread waits for it. It must wake the engine all the same;
// otherwise the engine would give the plan up after a second. The job has one rank, so that no ping
// of a peer wakes the engine. If the machine hangs for a second, the test tries again.
TEST(Communicator, WhatIsNotInThePlanWakesTheEngineAtOnce) {
  const auto await = [](const auto& is_so) { ASSERT_TRUE(test::wait_until(is_so)); };
  bool keeps_plan = false;
  for (int attempt = 0; attempt < 5 && !keeps_plan; ++attempt) {
    std::atomic<int> sleeps{0};
    run_threads(
        1,
        [&](Communicator& comm) {
          std::vector<float> a(10, 1.0f), b(1000, 1.0f), other(1, 1.0f);
          await([&] {
            auto first = comm.allreduce("a", a);
            comm.allreduce("b", b).wait();
            first.wait();
            return comm.statistics().replayed_buckets >= 3;
          });
          const int before = sleeps;
          auto first = comm.allreduce("a", a);
          await([&] { return sleeps > before; });
          auto unforeseen = comm.allreduce("other", other);
          await([&] { return unforeseen.done(); });
          comm.allreduce("b", b).wait();
          first.wait();
          keeps_plan = comm.statistics().vetoed_buckets == 0;
        },
        [&](Options& options) {
          options.replay_after = 2;
          options.observer = [&](std::string_view point) { sleeps += point == "idle" ? 1 : 0; };
        });
  }
  EXPECT_TRUE(keeps_plan);
}

// The Work of the last step may still be held when its name is used again: by the user, as in this
// test, or for a moment by the thread that finished it.
TEST(Communicator, AWorkThatIsStillHeldCostsNoAllocation) {
  run_threads(2, [](Communicator& comm) {
    std::vector<float> alone(100), first(100), second(100);
    Work held, held_group;
    const auto step = [&] {
      held = comm.allreduce("alone", alone);
      held_group =
          comm.grouped_allreduce("group", std::vector<NamedTensor>{{"1", first}, {"2", second}});
      held.wait();
      held_group.wait();
    };
    for (int i = 0; i < 20; ++i) step();
    comm.barrier_blocking();
    const auto before = comm.statistics();
    for (int i = 0; i < 100; ++i) step();
    const auto after = comm.statistics();
    EXPECT_EQ(after.allocations, before.allocations);
  });
}

// A tensor that is submitted only after a wait never shares a bucket with the awaited one, from the
// first plan on.
TEST(Communicator, WaitingBetweenTensorsIsSeen) {
  run_threads(2, [](Communicator& comm) {
    for (int step = 0; step < 100; ++step)
      for (const char* name : {"a", "b", "c"}) {
        std::vector<float> values(10, static_cast<float>(step));
        comm.allreduce(name, values).wait();
        ASSERT_EQ(values[0], static_cast<float>(step));
      }
    const auto statistics = comm.statistics();
    EXPECT_GT(statistics.replayed_buckets, 280u);
    EXPECT_EQ(statistics.plans_locked, 1u);
    EXPECT_EQ(statistics.vetoed_buckets, 0u);
  });
}

// Tensors of the first steps that never come again must not prevent a plan for the later steps.
TEST(Plan, TensorsThatComeNoMoreMakeRoomForOthers) {
  run_threads(2, [](Communicator& comm) {
    std::vector<float> tensor(100);
    const auto steps = [&](const char* name, int count) {
      for (int i = 0; i < count; ++i) {
        std::fill(tensor.begin(), tensor.end(), 1.0f);
        comm.allreduce(name, tensor, ReduceOp::sum).wait();
        ASSERT_EQ(tensor[99], 2.0f);
      }
    };
    steps("first", 20);
    EXPECT_EQ(comm.statistics().plans_locked, 1u);
    // A few other tensors in between do not end the plan.
    for (int i = 0; i < 10; ++i) {
      steps("first", 1);
      steps("now and then", 20);
    }
    EXPECT_EQ(comm.statistics().plans_locked, 1u);
    steps("second", 200);
    const auto before = comm.statistics();
    EXPECT_EQ(before.plans_locked, 2u);
    steps("second", 50);
    const auto after = comm.statistics();
    EXPECT_EQ(after.plans_locked, 2u);
    EXPECT_EQ(after.negotiation_messages, before.negotiation_messages);
    EXPECT_EQ(after.replayed_buckets - before.replayed_buckets, 50u);
  });
}

}  // namespace
}  // namespace tutti
