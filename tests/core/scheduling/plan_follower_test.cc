// Follows a plan step by step. There is no thread and no clock, and nothing is launched.

#include "tutti/core/scheduling/plan_follower.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "tests/support/idle_driver.h"
#include "tutti/core/agreement/checks.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Next = PlanFollower::Next;
using enum PlanFollower::State;

// Follows a plan of "a" and "b", each in its own bucket, on rank 0 of two unless a test says
// otherwise.
class PlanFollowerTest : public testing::Test {
 protected:
  static Plan plan_of(uint32_t id) {
    std::vector<Plan::Tensor> tensors;
    for (const char* name : {"a", "b"}) {
      tensors.emplace_back().name = name;
      tensors.back().signature.shape = Shape{4};
    }
    // No two tensors fit in one bucket.
    return Plan::build(id, tensors, 16, 1 << 20);
  }
  Entry& offer(const std::string& name, int64_t count = 4) {
    auto& entry = entries_.emplace_back();
    entry.request.name = name;
    entry.request.signature.shape = Shape{count};
    entry.submitted = now_;
    entry.work = std::make_shared<WorkState>(driver_, name, 1);
    EXPECT_TRUE(follower_.offer(&entry));
    return entry;
  }
  Next next(int running = 0) {
    return follower_.next(now_, running, [this] { return has_arrived_; });
  }
  void launch(const std::string& name) {
    auto& entry = offer(name);
    ASSERT_EQ(next(), Next::launch);
    follower_.launched();
    follower_.release(&entry);
  }
  void step() {
    launch("a");
    launch("b");
  }

  const std::shared_ptr<Driver> driver_ = std::make_shared<test::IdleDriver>();
  std::deque<Entry> entries_;
  Clock::time_point now_{std::chrono::hours(1)};
  bool has_arrived_ = true;
  PlanFollower follower_{0, 2};
};

TEST_F(PlanFollowerTest, NothingIsFollowedBeforeAPlanBegins) {
  EXPECT_EQ(follower_.state(), none);
  EXPECT_EQ(next(), Next::nothing);
  Entry entry;
  EXPECT_FALSE(follower_.offer(&entry));
  EXPECT_EQ(follower_.place().plan, 0u);
  EXPECT_TRUE(follower_.abandon().empty());
}

TEST_F(PlanFollowerTest, BucketsAreLaunchedInTheOrderOfThePlan) {
  follower_.begin(plan_of(1));
  EXPECT_EQ(follower_.state(), following);
  EXPECT_EQ(next(), Next::nothing);
  offer("b");
  EXPECT_EQ(next(), Next::nothing) << "a comes first";
  offer("a");
  for (uint64_t sequence = 0; sequence < 2; ++sequence) {
    EXPECT_EQ(follower_.place().sequence, sequence);
    ASSERT_EQ(next(), Next::launch);
    follower_.launched();
  }
  EXPECT_EQ(next(), Next::nothing);
  EXPECT_THROW(follower_.begin(plan_of(2)), DamagedMessage) << "one after another";
}

TEST_F(PlanFollowerTest, WaitsForRoomAndForWhatComesFromADevice) {
  follower_.begin(plan_of(1));
  offer("a");
  EXPECT_EQ(next(PlanFollower::kMostRunning), Next::nothing);
  has_arrived_ = false;
  EXPECT_EQ(next(), Next::nothing);
  EXPECT_FALSE(follower_.can_go_on(0, [] { return false; }));
  EXPECT_TRUE(follower_.can_go_on(0, [] { return true; }));
  EXPECT_FALSE(follower_.can_go_on(PlanFollower::kMostRunning, [] { return true; }));
}

TEST_F(PlanFollowerTest, ATensorThatChangedIsVetoed) {
  follower_.begin(plan_of(1));
  offer("a", 5);
  EXPECT_EQ(next(), Next::veto);
  EXPECT_TRUE(follower_.is_first_to_veto());
  follower_.vetoed_here(Next::veto);
  EXPECT_EQ(follower_.state(), vetoed);
  EXPECT_EQ(next(), Next::nothing);
}

TEST_F(PlanFollowerTest, AVetoThatIsHeardIsFollowedAtItsBucket) {
  follower_.begin(plan_of(1));
  follower_.on_veto({.plan = 1, .sequence = 2});
  follower_.on_veto({.plan = 1, .sequence = 1});
  follower_.on_veto({.plan = 1, .sequence = 3});
  EXPECT_TRUE(follower_.is_first_to_veto()) << "none is heard for this bucket";
  launch("a");
  EXPECT_EQ(next(), Next::veto) << "though nothing is here";
  EXPECT_FALSE(follower_.is_first_to_veto());
}

TEST_F(PlanFollowerTest, AVetoThatOvertakesItsPlanIsKept) {
  follower_.on_veto({.plan = 2, .sequence = 1});
  follower_.on_veto({.plan = 2, .sequence = 0});
  follower_.on_veto({.plan = 2, .sequence = 5});
  follower_.begin(plan_of(2));
  EXPECT_EQ(next(), Next::veto);
}

TEST_F(PlanFollowerTest, AVetoOfAnotherPlanIsNone) {
  follower_.on_veto({.plan = 3, .sequence = 0});
  follower_.begin(plan_of(2));
  follower_.on_veto({.plan = 1, .sequence = 0});
  EXPECT_EQ(next(), Next::nothing);
}

TEST_F(PlanFollowerTest, ACollapsedPlanGivesBackWhatItHolds) {
  follower_.begin(plan_of(4));
  auto& a = offer("a");
  ASSERT_EQ(next(), Next::launch);
  follower_.launched();
  auto& b = offer("b");
  ASSERT_EQ(next(), Next::launch);
  follower_.launched();
  EXPECT_TRUE(follower_.collapse(1));
  EXPECT_EQ(follower_.state(), collapsed);
  EXPECT_FALSE(follower_.collapse(1)) << "it is known";
  EXPECT_TRUE(follower_.collapse(0));
  EXPECT_FALSE(follower_.collapse(1)) << "it came behind";
  Entry late;
  EXPECT_FALSE(follower_.offer(&late));
  EXPECT_EQ(next(), Next::nothing);
  EXPECT_EQ(follower_.place().sequence, 0u) << "what never happened is not launched";
  EXPECT_THAT(follower_.end(), testing::ElementsAre(&a, &b));
  EXPECT_EQ(follower_.state(), none);
  EXPECT_EQ(follower_.place().plan, 4u);
  EXPECT_EQ(follower_.place().sequence, 0u);
  follower_.begin(plan_of(5));
  EXPECT_EQ(next(), Next::nothing);
  EXPECT_EQ(follower_.place().plan, 5u);
}

TEST_F(PlanFollowerTest, WhereARankHasLeftThePlanStaysAndNothingIsLaunched) {
  follower_.begin(plan_of(1));
  auto& b = offer("b");
  EXPECT_THAT(follower_.abandon(), testing::ElementsAre(&b));
  EXPECT_EQ(follower_.state(), abandoned);
  offer("a");
  EXPECT_EQ(next(), Next::nothing);
  EXPECT_EQ(follower_.abandon().size(), 1u) << "what came since";
  EXPECT_TRUE(follower_.collapse(0)) << "a bucket that was vetoed before";
  EXPECT_TRUE(follower_.abandon().empty());
  EXPECT_EQ(follower_.state(), collapsed);
}

// "b" waits and "a" does not come.
TEST_F(PlanFollowerTest, ATensorThatWaitsForLongIsEvidence) {
  follower_.begin(plan_of(1));
  offer("b");
  const auto begin = now_;
  EXPECT_EQ(next(), Next::nothing);
  EXPECT_EQ(follower_.wake_at(), begin + seconds(1));
  EXPECT_EQ(follower_.look_at(), begin + milliseconds(1));
  now_ = begin + milliseconds(999);
  EXPECT_EQ(next(), Next::nothing);
  now_ = begin + seconds(1);
  EXPECT_EQ(next(), Next::veto);
}

TEST_F(PlanFollowerTest, ATensorThatAThreadWaitsForIsEvidenceAtOnce) {
  follower_.begin(plan_of(1));
  auto& b = offer("b");
  b.work->waiting_since = now_.time_since_epoch().count();
  ++b.work->waiters;
  EXPECT_EQ(next(), Next::nothing);
  EXPECT_EQ(follower_.wake_at(), now_ + milliseconds(1));
  now_ += milliseconds(1);
  EXPECT_EQ(next(), Next::veto);
}

TEST_F(PlanFollowerTest, NoEvidenceIsLookedForWhereNothingWaits) {
  follower_.begin(plan_of(1));
  EXPECT_EQ(next(), Next::nothing);
  EXPECT_EQ(follower_.wake_at(), Clock::time_point::max());
  EXPECT_EQ(follower_.look_at(), Clock::time_point::max());
}

TEST_F(PlanFollowerTest, APlanThatNobodyUsesIsGivenUp) {
  follower_.begin(plan_of(1));
  const int most = PlanFollower::kMostBesidePlan * follower_.patience();
  for (int i = 0; i + 1 < most; ++i) follower_.answered_beside();
  EXPECT_EQ(next(), Next::nothing);
  step();
  for (int i = 0; i + 1 < most; ++i) follower_.answered_beside();
  EXPECT_EQ(next(), Next::nothing) << "it was used";
  follower_.answered_beside();
  EXPECT_EQ(next(), Next::unused);
  const int patience = follower_.patience();
  follower_.vetoed_here(Next::unused);
  EXPECT_EQ(follower_.patience(), 2 * patience);
}

TEST_F(PlanFollowerTest, OnlyRank0GivesAPlanUpThatNobodyUses) {
  PlanFollower other(1, 2);
  other.begin(plan_of(1));
  for (int i = 0; i < PlanFollower::kMostBesidePlan * other.patience(); ++i)
    other.answered_beside();
  EXPECT_EQ(other.next(now_, 0, [] { return true; }), Next::nothing);
}

TEST_F(PlanFollowerTest, AnotherOrderOfTheTensorsMakesANewPlan) {
  follower_.begin(plan_of(1));
  int steps = 0;
  for (; steps < 2 * follower_.patience(); ++steps) {
    auto& b = offer("b");
    if (next() == Next::reordered) break;
    auto& a = offer("a");
    for (int bucket = 0; bucket < 2; ++bucket) {
      const auto what = next();
      if (what == Next::reordered) break;
      ASSERT_EQ(what, Next::launch);
      follower_.launched();
    }
    follower_.release(&a);
    follower_.release(&b);
  }
  EXPECT_EQ(steps, follower_.patience());
}

}  // namespace
}  // namespace tutti
