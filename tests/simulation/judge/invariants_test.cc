// Each invariant accepts a correct record, and finds the one mistake in a changed one.
#include "tests/simulation/judge/invariants.h"

#include <gtest/gtest.h>

#include "tests/simulation/judge/small_world.h"

namespace tutti::simulation {
namespace {

constexpr std::string_view kTwoSums = "world\nranks 0,1: submit t allreduce 4 c=1; wait\n";

std::string texts(const Findings& findings) {
  std::string text;
  for (const auto& finding : findings) text += finding.text + "\n";
  return text;
}

// Expects that the invariant finds nothing before `change` and something after it.
template <class Change>
void breaks(void (*invariant)(const View&, Findings&), int number, Change change,
            std::string_view text = kTwoSums) {
  SmallWorld world(text);
  EXPECT_EQ(texts(world.find(invariant)), "");
  change(world);
  const Findings findings = world.find(invariant);
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings.front().invariant, number);
}

TEST(Invariants, ARunInWhichAllWentWellKeepsThemAll) {
  EXPECT_EQ(texts(SmallWorld(kTwoSums).find_all()), "");
  EXPECT_EQ(texts(SmallWorld("world size=3\nranks 0,1,2: submit t allgather 2 c=1, u alltoall 6; "
                             "wait; block b broadcast 3 root=2; join\n")
                      .find_all()),
            "");
}

TEST(Invariants, NobodySleepsForGood) {
  breaks(ranks_sleep_and_wake, 2,
         [](SmallWorld& world) { world.rank(1).sleeps_with_something_pending = true; });
  breaks(ranks_sleep_and_wake, 2,
         [](SmallWorld& world) { world.rank(1).went_on_at_a_look = true; });
  breaks(ranks_sleep_and_wake, 2,
         [](SmallWorld& world) { world.rank(0).most_steps_in_vain = 201; });
  breaks(ranks_sleep_and_wake, 2, [](SmallWorld& world) { world.record().hit_the_limit = true; });
}

TEST(Invariants, ResultsAreTheModelsToTheBit) {
  breaks(results_are_right, 3,
         [](SmallWorld& world) { world.operation(1, "t").output.back() ^= std::byte{1}; });
  breaks(results_are_right, 3,
         [](SmallWorld& world) { world.operation(1, "t").output.pop_back(); });
  breaks(results_are_right, 3,
         [](SmallWorld& world) { world.operation(0, "t").is_refused = true; });
  breaks(results_are_right, 3,
         [](SmallWorld& world) { world.from().ranks[0][0][0].operations[0].rows = 5; });
}

TEST(Invariants, ASendToARankThatDiedMayHaveBeenTaken) {
  SmallWorld world("world\nranks 0: submit p send 1 root=1\nranks 1: submit p recv 1 root=-1\n");
  world.rank(1).killed = 60;
  EXPECT_EQ(texts(world.find(results_are_right)),
            "rank 1 p (script 0, action 0), submitted at 0 "
            "ended well, and nobody sent\n");
  world.operation(1, "p").ended = kNever;
  EXPECT_EQ(texts(world.find(results_are_right)), "");
  world.operation(1, "p").is_refused = true;
  EXPECT_FALSE(world.find(results_are_right).empty());
}

TEST(Invariants, RefusalsLeaveMemoryAlone) {
  breaks(refusals_change_nothing, 4, [](SmallWorld& world) {
    world.fail(1, "t", ErrorCode::mismatch, 0, 50).input_changed = true;
  });
  SmallWorld lost(kTwoSums);
  lost.fail(1, "t", ErrorCode::peer_lost, 0, 50).input_changed = true;
  EXPECT_EQ(texts(lost.find(refusals_change_nothing)), "");
}

TEST(Invariants, WhatALeaverFinishedEndsOnAll) {
  breaks(leavers_finish_for_all, 6, [](SmallWorld& world) {
    world.rank(0).closing = world.rank(0).farewell = 60;
    world.fail(1, "t", ErrorCode::peer_left, 0, 80);
  });
  breaks(leavers_finish_for_all, 6, [](SmallWorld& world) {
    world.rank(0).closing = world.rank(0).farewell = 40;
    world.fail(0, "t", ErrorCode::closed, -1, 40);
    world.operation(1, "t").ended = 2341;
  });
  SmallWorld unheard(kTwoSums);
  unheard.rank(0).closing = unheard.rank(0).farewell = 40;
  unheard.fail(0, "t", ErrorCode::closed, -1, 40);
  unheard.operation(1, "t").ended = 2340;
  EXPECT_EQ(texts(unheard.find(leavers_finish_for_all)), "");
}

TEST(Invariants, QueuesGrowAlike) {
  breaks(queues_have_one_order, 7, [](SmallWorld& world) {
    world.rank(0).starts = {{10, 0, 2, "a"}, {20, 0, 1, "b"}};
  });
  breaks(queues_have_one_order, 7, [](SmallWorld& world) {
    world.rank(0).starts = {{10, 0, 1, "a"}};
    world.rank(1).starts = {{10, 0, 1, "b"}};
  });
  SmallWorld fine(kTwoSums);
  fine.rank(0).starts = {{10, 0, 1, "a"}, {20, 7, 1, "p"}, {30, 0, 2, "b"}};
  fine.rank(1).starts = {{10, 0, 1, "a"}, {11, 0, 2, "b"}};
  EXPECT_EQ(texts(fine.find(queues_have_one_order)), "");
}

TEST(Invariants, VetoesAreHeard) {
  const BucketRecord first{10, 1, 0, false};
  const Micros due = 20 + 20 * 2100;
  const auto find = [](std::vector<BucketRecord> one, std::vector<BucketRecord> other) {
    SmallWorld world(kTwoSums);
    world.rank(0).closing = world.rank(1).closing = kSecond;
    world.rank(0).buckets = std::move(one);
    world.rank(1).buckets = std::move(other);
    return texts(world.find(vetoes_are_heard));
  };
  EXPECT_EQ(find({first, {20, 1, 1, true}}, {first}),
            "rank 0 vetoed bucket 1 of plan 1 at 20, and rank 1 never took part in it\n");
  EXPECT_EQ(find({{20, 1, 0, true}}, {{due + 1, 1, 0, false}}),
            "rank 0 vetoed bucket 0 of plan 1 at 20, and rank 1 took part at 42021\n");
  EXPECT_EQ(find({{20, 1, 0, true}}, {{due, 1, 0, false}}), "");
  EXPECT_EQ(find({first, {20, 1, 1, true}}, {{15, 1, 0, true}}), "");
  EXPECT_EQ(find({first, {20, 1, 1, true}}, {}), "");  // rank 1 has not started bucket 0
}

TEST(Invariants, TheBrokenStartNothing) {
  breaks(the_broken_start_nothing, 8, [](SmallWorld& world) {
    world.rank(0).broken = 20;
    world.rank(0).starts = {{21, 0, 1, "t"}};
  });
  breaks(the_broken_start_nothing, 8,
         [](SmallWorld& world) { world.operation(0, "t").touched_after_end = true; });
}

TEST(Invariants, FarewellsAreFinal) {
  breaks(farewells_are_final, 9, [](SmallWorld& world) {
    world.rank(0).starts = {{5001, 0, 1, "t"}};
  });
  breaks(farewells_are_final, 9,
         [](SmallWorld& world) { world.rank(1).operation_messages_after_farewell = 1; });
  breaks(farewells_are_final, 9, [](SmallWorld& world) { world.rank(1).closing_error = "bad"; });
  breaks(farewells_are_final, 9, [](SmallWorld& world) { world.rank(1).tells_launcher = true; });
}

TEST(Invariants, NegotiationIsShort) {
  breaks(negotiation_is_short, 10, [](SmallWorld& world) {
    world.rank(0).batches = 1;
    world.rank(0).negotiation_messages = 1;
    world.rank(1).negotiation_messages = 2;
  });
  SmallWorld fine(kTwoSums);
  fine.rank(0).batches = fine.rank(0).negotiation_messages = fine.rank(1).negotiation_messages = 1;
  EXPECT_EQ(texts(fine.find(negotiation_is_short)), "");
}

TEST(Invariants, ReplayedStepsNeedNeitherMessagesNorMemory) {
  const std::string step = "submit t allreduce 4; wait; ";
  const std::string text =
      "world\nranks 0,1: " + step + step + step + step + step + step + step + "\n";
  const std::vector<StepRecord> grows = {{1, 1}, {2, 2}, {3, 3}, {3, 4}, {3, 5}, {3, 6}, {3, 7}};
  const std::vector<StepRecord> rests = {{1, 1}, {2, 2}, {3, 3}, {3, 4}, {3, 5}, {3, 5}, {3, 6}};
  breaks(
      negotiation_is_short, 10,
      [](SmallWorld& world) {
        world.rank(1).steps = {{1, 1}, {2, 2}, {3, 3}, {3, 4}, {3, 4}, {4, 4}};
      },
      text);
  breaks(
      negotiation_is_short, 10,
      [&](SmallWorld& world) { world.rank(0).steps = world.rank(1).steps = grows; }, text);
  SmallWorld fine(text);
  fine.rank(0).steps = grows;
  fine.rank(1).steps = rests;
  EXPECT_EQ(texts(fine.find(negotiation_is_short)), "");
}

TEST(Invariants, EndsAreCounted) {
  breaks(ends_are_counted, 12, [](SmallWorld& world) { world.rank(1).allreduces_counted = 0; });
  breaks(ends_are_counted, 12, [](SmallWorld& world) { world.rank(1).allreduces_counted = 2; });
  breaks(
      ends_are_counted, 12, [](SmallWorld& world) { world.rank(0).blocking_counted = 0; },
      "world\nranks 0,1: block b barrier 1\n");
  breaks(
      ends_are_counted, 12, [](SmallWorld& world) { world.rank(0).pairs_counted = 0; },
      "world\nranks 0: block p send 1 root=1\nranks 1: block p recv 1\n");
}

TEST(Invariants, WhatCameBeforeADamagedMessageIsJudged) {
  const auto change = [](SmallWorld& world) {
    world.operation(1, "t").output.back() ^= std::byte{1};
  };
  breaks(results_are_right, 3, [&](SmallWorld& world) {
    change(world);
    world.record().damaged = 51;
  });
  SmallWorld later(kTwoSums);
  change(later);
  later.record().damaged = 50;
  EXPECT_EQ(texts(later.find(results_are_right)), "");
  later.rank(0).tickets_left = 1;
  EXPECT_FALSE(later.find_all().empty());
}

TEST(Invariants, PhasesFollowTheDrawing) {
  breaks(phases_follow_the_drawing, 11, [](SmallWorld& world) {
    world.rank(0).phases = {{0, 1}, {1, 5}, {5, 1}};
  });
  breaks(phases_follow_the_drawing, 11, [](SmallWorld& world) {
    world.rank(0).phases = {{0, 1}, {2, 4}};
  });
}

TEST(Invariants, NothingIsLeft) {
  breaks(nothing_is_left, 13, [](SmallWorld& world) { world.rank(1).tickets_left = 1; });
  SmallWorld killed(kTwoSums);
  killed.rank(1).tickets_left = 1;
  killed.rank(1).killed = 10;
  EXPECT_EQ(texts(killed.find(nothing_is_left)), "");
  killed.rank(1).killed = killed.rank(1).over = kNever;
  EXPECT_EQ(texts(killed.find(nothing_is_left)), "");
}

TEST(Invariants, CallbacksRunOnce) {
  breaks(callbacks_run_once, 14, [](SmallWorld& world) { world.operation(0, "t").callbacks = 2; });
  breaks(callbacks_run_once, 14, [](SmallWorld& world) { world.operation(0, "t").callbacks = 0; });
  SmallWorld full(kTwoSums);
  full.operation(0, "t").callbacks = 0;
  full.record().memory_ran_out = true;
  EXPECT_EQ(texts(full.find(callbacks_run_once)), "") << "there may have been no memory for it";
}

TEST(Invariants, TheIdleAreLeftAlone) {
  breaks(the_idle_are_left_alone, 15, [](SmallWorld& world) { world.rank(0).idle_pings = {30}; });
}

TEST(Invariants, MemoryOutlivesItsUse) {
  breaks(memory_outlives_its_use, 16,
         [](SmallWorld& world) { world.rank(0).memory_retired_in_use = true; });
}

TEST(Invariants, WhatTheWorldSawItselfIsAFinding) {
  SmallWorld world(kTwoSums);
  world.record().broken_promises = {"rank 1 was stepped from within a step"};
  EXPECT_EQ(texts(world.find_all()), "rank 1 was stepped from within a step\n");
}

}  // namespace
}  // namespace tutti::simulation
