// A node without threads. Its decisions follow only from its inputs and the time.

#include "tutti/core/node/node.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/node/stepped_ranks.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::SteppedRank;
using test::SteppedRanks;

// All ranks sum "x" until its plan is replayed. Then the rank `alone` submits it, and its part
// runs.
void run_alone(SteppedRanks& ranks, int size, int alone) {
  static std::vector<std::vector<float>> values(8, std::vector<float>{1});
  std::vector<int> all;
  for (int rank = 0; rank < size; ++rank) all.push_back(rank);
  for (int step = 0; step < 10; ++step) {
    for (const int rank : all) ranks[rank].submit("x", values[static_cast<size_t>(rank)]);
    ranks.settle(all);
  }
  ranks[alone].ended.clear();
  ranks[alone].submit("x", values[static_cast<size_t>(alone)]);
  ranks.settle(all);
  ASSERT_EQ(ranks[alone].node().scheduler().runs().size(), 1u);
}

ErrorCode code_of(const std::optional<std::optional<Error>>& end) {
  return end && *end ? (*end)->code() : ErrorCode::internal;
}

TEST(Node, AnAllreduceGivesTheSumOnAllRanks) {
  SteppedRanks ranks(3);
  std::vector<std::vector<float>> x{{1, 2}, {10, 20}, {100, 200}};
  for (int rank = 0; rank < 3; ++rank) ranks[rank].submit("x", x[static_cast<size_t>(rank)]);
  ranks.settle({0, 1, 2});
  for (int rank = 0; rank < 3; ++rank) {
    const auto end = ranks[rank].end_of("x");
    ASSERT_TRUE(end);
    EXPECT_FALSE(*end);
    EXPECT_THAT(x[static_cast<size_t>(rank)], testing::ElementsAre(111, 222));
    EXPECT_EQ(ranks[rank].node().phase(), Phase::running);
    EXPECT_FALSE(ranks[rank].node().pending());
  }
}

// Rank 1 has asked for "x" and closes. Then the others ask for "x", too, and rank 0 answers. Rank 1
// must not take part with neutral elements, as a joined rank would.
TEST(Node, TakesPartInNothingAfterItsFarewell) {
  SteppedRanks ranks(3);
  std::vector<std::vector<float>> x{{1}, {10}, {100}};
  ranks[1].submit("x", x[1]);
  ranks.settle({0, 1, 2});
  ranks[1].has_launcher = true;  // so that its farewell waits
  ranks[1].close("out of disk");
  ranks.settle({1});
  ASSERT_EQ(ranks[1].node().phase(), Phase::closing);
  EXPECT_TRUE(ranks[1].asks_launcher);
  EXPECT_EQ(code_of(ranks[1].end_of("x")), ErrorCode::closed);

  ranks[0].submit("x", x[0]);
  ranks[2].submit("x", x[2]);
  ranks.settle({0, 1, 2});
  EXPECT_FALSE(ranks[0].end_of("x")) << "it ended without rank 1";
  EXPECT_EQ(x[1][0], 10) << "rank 1's tensor was written after its Work was done";

  ranks[1].bring_told();
  ranks.settle({0, 1, 2});
  EXPECT_EQ(ranks[1].node().phase(), Phase::over);
  for (const int rank : {0, 2}) {
    const auto end = ranks[rank].end_of("x");
    ASSERT_EQ(code_of(end), ErrorCode::peer_left) << "rank " << rank;
    EXPECT_EQ((*end)->rank(), 1);
    EXPECT_THAT((*end)->what(), testing::HasSubstr("out of disk"));
    EXPECT_EQ(ranks[rank].node().phase(), Phase::departing);
    EXPECT_EQ(ranks[rank].first_departure, 1);
  }
}

TEST(Node, AJoinThatComesInTheStepOfTheCloseCounts) {
  SteppedRanks ranks(2);
  ranks[0].join();
  ranks.settle({0, 1});
  ranks[1].join();
  ranks[1].close();
  ranks.settle({0, 1});
  EXPECT_EQ(code_of(ranks[1].end_of("join")), ErrorCode::closed);
  const auto end = ranks[0].end_of("join");
  ASSERT_TRUE(end);
  EXPECT_FALSE(*end) << (*end)->what();
}

TEST(Node, AJoinEndsWellThoughARankThatHasJoinedHasLeft) {
  SteppedRanks ranks(3);
  ranks[0].join();
  ranks[2].join();
  ranks[2].close();
  ranks.settle({0, 1, 2});
  EXPECT_EQ(ranks[1].node().phase(), Phase::departing);
  EXPECT_FALSE(ranks[0].end_of("join"));
  ranks[1].join();
  ranks.settle({0, 1});
  for (const int rank : {0, 1}) {
    const auto end = ranks[rank].end_of("join");
    ASSERT_TRUE(end);
    EXPECT_FALSE(*end) << (*end)->what();
  }
  ranks[1].join();
  ranks.settle({0, 1});
  EXPECT_EQ(code_of(ranks[1].end_of("join")), ErrorCode::peer_left) << "rank 2 joined once";
}

// Rank 1 learns that rank 2 left without joining, so its join fails. Rank 0 learns that rank 1 left
// before it learns the same of rank 2.
TEST(Node, AJoinThatFailedIsInNoFarewell) {
  SteppedRanks ranks(3);
  ranks[1].join();
  ranks.settle({0, 1});
  ranks[2].close();
  ranks.settle({1, 2});
  EXPECT_EQ(code_of(ranks[1].end_of("join")), ErrorCode::peer_left);
  ranks[1].close();
  ranks.settle({0, 1});
  const auto* departure = ranks[0].node().peers().departure_of(1);
  ASSERT_NE(departure, nullptr);
  EXPECT_EQ(departure->farewell.joins, 0u);
}

TEST(Node, SaysItsFarewellThoughTheLauncherNeverAnswers) {
  SteppedRanks ranks(2);
  ranks[1].has_launcher = true;
  ranks[1].close("an error");
  ranks.settle({0, 1});
  EXPECT_EQ(ranks[1].node().phase(), Phase::closing);
  EXPECT_EQ(ranks[1].node().wake_at(), ranks.now() + seconds(1));
  ranks.pass(seconds(1));
  ranks.settle({0, 1});
  EXPECT_EQ(ranks[1].node().phase(), Phase::over);
  EXPECT_EQ(ranks[0].node().phase(), Phase::departing);
}

TEST(Node, AnOperationThatIsSubmittedAfterARankLeftEndsAtOnce) {
  SteppedRanks ranks(2);
  ranks[1].close();
  ranks.settle({0, 1});
  std::vector<float> x{1};
  ranks[0].submit("x", x);
  ranks.step(0);
  EXPECT_EQ(code_of(ranks[0].end_of("x")), ErrorCode::peer_left);
}

// Rank 0 has begun its part of a replayed step, for which no request of rank 1 is needed.
TEST(Node, WhatNeedsARankThatHasClosedEndsThoughItRuns) {
  SteppedRanks ranks(2);
  ASSERT_NO_FATAL_FAILURE(run_alone(ranks, 2, 0));
  ranks[1].close();
  ranks.settle({0, 1});
  const auto end = ranks[0].end_of("x");
  ASSERT_EQ(code_of(end), ErrorCode::peer_left);
  EXPECT_EQ((*end)->rank(), 1);
}

// Steps the rank as a thread does that stops stepping as soon as another thread may sleep until
// something arrives.
int steps_while_it_can_go_on(SteppedRanks& ranks, int rank) {
  int steps = 0;
  do {
    ranks.step(rank);
  } while (++steps < 100 && ranks[rank].node().can_go_on());
  EXPECT_FALSE(ranks[rank].node().can_go_on());
  return steps;
}

TEST(Node, SaysThatItCanGoOnWhereMoreWaitsThanRunsAtOnce) {
  SteppedRanks ranks(1, [](Options& options) { options.fusion_bytes = 4; });
  std::vector<float> x{1};
  for (int i = 0; i < 20; ++i) ranks[0].submit("x" + std::to_string(i), x);
  steps_while_it_can_go_on(ranks, 0);
  EXPECT_EQ(ranks[0].ended.size(), 20u);
  EXPECT_FALSE(ranks[0].node().pending());
}

// Rank 0 gathers timelines, so its link stays open after its farewell.
TEST(Node, SaysThatItCanGoOnWhereADepartureEndsWhatRuns) {
  SteppedRanks ranks(2, [](Options& options) { options.timeline = "timeline"; });
  ASSERT_NO_FATAL_FAILURE(run_alone(ranks, 2, 1));
  ranks[0].close();
  ranks.step(0);
  ASSERT_EQ(ranks[0].node().phase(), Phase::closing);
  EXPECT_GT(steps_while_it_can_go_on(ranks, 1), 1);
  EXPECT_EQ(code_of(ranks[1].end_of("x")), ErrorCode::peer_left);
  EXPECT_FALSE(ranks[1].node().pending());
}

// Rank 1 ends because rank 2 has closed. Rank 0 reads both in one step.
TEST(Node, WhoClosedIsBlamedThoughWhatRunsIsTakenBackOnlyNow) {
  SteppedRanks ranks(3);
  ASSERT_NO_FATAL_FAILURE(run_alone(ranks, 3, 0));
  ranks[1].die();
  ranks[2].close();
  ranks.step(2);
  ranks.step(0);
  ranks.pass(milliseconds(300));
  ranks.settle({0});
  const auto end = ranks[0].end_of("x");
  ASSERT_EQ(code_of(end), ErrorCode::peer_left);
  EXPECT_EQ((*end)->rank(), 2);
}

// Rank 0 closes because rank 1 did, with another reason. Rank 2 reads both farewells in one step.
TEST(Node, TheErrorBecauseOfWhichTheFirstRankClosedIsPassedOn) {
  SteppedRanks ranks(3);
  ranks[1].close("ValueError: sample\n17 of " + std::string(500, 'x'));
  ranks.settle({0, 1});
  ASSERT_EQ(ranks[0].node().phase(), Phase::departing);
  ranks[0].close("what rank 1 brought about");
  ranks.settle({0});
  EXPECT_EQ(ranks[0].node().phase(), Phase::over);
  std::vector<float> y{1};
  ranks[2].submit("y", y);
  ranks.settle({2});
  const auto end = ranks[2].end_of("y");
  ASSERT_EQ(code_of(end), ErrorCode::peer_left);
  EXPECT_EQ((*end)->rank(), 1);
  EXPECT_THAT((*end)->what(), testing::HasSubstr("because of an error (ValueError: sample 17 of " +
                                                 std::string(375, 'x') + "), so nothing"));
}

// --- a link that ends without a farewell --------------------------------------------------------

/// Rank 1 of two is gone without a farewell. Rank 0 has seen its link end.
class Inquiring : public testing::Test {
 protected:
  Inquiring() : ranks_(2) {
    ranks_[0].submit("x", x_);
    ranks_.settle({0, 1});
    ranks_[1].die();
    EXPECT_TRUE(ranks_.step(0)) << "that the phase changed is a move";
    EXPECT_EQ(ranks_[0].node().phase(), Phase::inquiring);
    EXPECT_TRUE(ranks_[0].asks_for_deaths);
  }
  Error end() { return *ranks_[0].end_of("x").value(); }

  SteppedRanks ranks_;
  std::vector<float> x_{1};
};

TEST_F(Inquiring, EndsAfterThreeTenthsOfASecondWithWhatTheLinkSaid) {
  EXPECT_EQ(ranks_[0].node().wake_at(), ranks_.now() + milliseconds(5));
  ranks_.pass(milliseconds(299));
  ranks_.settle({0});
  EXPECT_EQ(ranks_[0].node().phase(), Phase::inquiring);
  ranks_.pass(milliseconds(1));
  EXPECT_TRUE(ranks_.step(0));
  EXPECT_EQ(ranks_[0].node().phase(), Phase::broken);
  EXPECT_FALSE(ranks_[0].asks_for_deaths);
  EXPECT_EQ(end().code(), ErrorCode::peer_lost);
  EXPECT_EQ(end().rank(), 1);
  EXPECT_THAT(end().what(), testing::HasSubstr("was lost ("));
  EXPECT_THAT(ranks_[0].doors, testing::ElementsAre(Door::breaking, Door::broken));
}

TEST_F(Inquiring, EndsWithTheDeathThatTheLauncherSaw) {
  KnownDeaths known;
  known.deaths.push_back({.who = {1, 0}, .pid = 7, .signal = 9, .host = "b"});
  ranks_[0].bring(known);
  ranks_.step(0);
  EXPECT_EQ(ranks_[0].node().phase(), Phase::broken);
  EXPECT_THAT(end().what(), testing::HasSubstr("was killed by signal 9 (Killed)"));
}

TEST_F(Inquiring, ADeathOfAnotherIncarnationIsNone) {
  KnownDeaths known;
  known.deaths.push_back({.who = {1, 1}, .pid = 7, .signal = 9, .host = "b"});
  ranks_[0].bring(known);
  ranks_.step(0);
  EXPECT_EQ(ranks_[0].node().phase(), Phase::inquiring);
}

TEST_F(Inquiring, EndsSoonWhenTheStoreIsGone) {
  ranks_[0].process = ProcessState::ended;
  ranks_[0].bring({.deaths = {}, .is_all = true});
  ranks_.step(0);
  EXPECT_EQ(ranks_[0].node().phase(), Phase::inquiring);
  ranks_.pass(milliseconds(20));
  ranks_.step(0);
  EXPECT_EQ(ranks_[0].node().phase(), Phase::broken);
  EXPECT_THAT(end().what(), testing::HasSubstr("its process exited or was killed"));
}

TEST_F(Inquiring, KeepsWhatIsSubmittedUntilItEnds) {
  std::vector<float> y{1};
  ranks_[0].submit("y", y);
  ranks_.settle({0});
  EXPECT_FALSE(ranks_[0].end_of("y"));
  ranks_.pass(seconds(1));
  ranks_.settle({0});
  EXPECT_EQ(code_of(ranks_[0].end_of("y")), ErrorCode::peer_lost);
}

TEST_F(Inquiring, EndsBeforeThisRankCloses) {
  ranks_[0].close();
  ranks_.settle({0});
  EXPECT_EQ(ranks_[0].node().phase(), Phase::inquiring);
  ranks_.pass(milliseconds(300));
  ranks_.settle({0});
  EXPECT_EQ(ranks_[0].node().phase(), Phase::over);
  EXPECT_EQ(end().code(), ErrorCode::peer_lost);
  EXPECT_FALSE(ranks_[0].node().may_say_goodbye());
}

// --- exceptions ---------------------------------------------------------------------------------

TEST(Node, WhatIsThrownEndsTheCommunicatorOnAllRanks) {
  SteppedRanks ranks(2);
  std::vector<float> x{1};
  ranks[0].submit("x", x);
  ranks.settle({0, 1});
  ranks[1].node().on_thrown(Error(ErrorCode::out_of_memory, "rank 1 ran out of memory"));
  EXPECT_EQ(ranks[1].node().phase(), Phase::broken);
  ranks.settle({0});
  EXPECT_EQ(ranks[0].node().phase(), Phase::broken);
  EXPECT_EQ(code_of(ranks[0].end_of("x")), ErrorCode::out_of_memory);
  // Both ranks sleep from now on.
  for (const int rank : {0, 1}) {
    EXPECT_FALSE(ranks.step(rank));
    EXPECT_TRUE(ranks[rank].node().arm());
    EXPECT_EQ(ranks[rank].node().wake_at(), Clock::time_point::max());
  }
}

TEST(Node, ASilentPeerIsAskedAndThenGivenUp) {
  SteppedRanks ranks(2);
  std::vector<float> x{1};
  ranks[0].submit("x", x);
  ranks.settle({0, 1});
  // Rank 1 is not stepped any more.
  Phase phase = Phase::running;
  const auto begin = ranks.now();
  while (phase == Phase::running && ranks.now() - begin < seconds(60)) {
    ranks.pass(milliseconds(100));
    ranks.step(0);
    phase = ranks[0].node().phase();
  }
  EXPECT_EQ(phase, Phase::broken);
  EXPECT_EQ(code_of(ranks[0].end_of("x")), ErrorCode::peer_silent);
  const auto waited = ranks.now() - begin;
  EXPECT_GE(waited, seconds(10)) << "peer_timeout";
  EXPECT_LE(waited, seconds(13));
}

}  // namespace
}  // namespace tutti
