#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "tools/run/deaths.h"

namespace tutti::run {
namespace {

using std::chrono::milliseconds;

const auto kStart = Clock::time_point() + std::chrono::hours(1);
auto at(int count) { return kStart + milliseconds(count); }

constexpr End kDone{.code = 0, .signal = 0};
constexpr End kFailed{.code = 7, .signal = 0};
constexpr End kKilled{.code = 0, .signal = 9};

TEST(Deaths, AllWell) {
  Deaths deaths(2, false, 10);
  deaths.ended(0, kDone, at(0));
  EXPECT_FALSE(deaths.all_ended());
  EXPECT_TRUE(deaths.next().is_never());
  EXPECT_EQ(deaths.due(at(1'000'000)), 0);
  deaths.ended(1, kDone, at(1'000'000));
  EXPECT_TRUE(deaths.all_ended());
  EXPECT_EQ(deaths.exit_code(), 0);
  EXPECT_FALSE(deaths.first_failure());
}

TEST(Deaths, TheOthersGetTime) {
  Deaths deaths(3, false, 10);
  deaths.ended(1, kKilled, at(0));
  EXPECT_EQ(deaths.next().when(), at(3000));
  EXPECT_EQ(deaths.due(at(2999)), 0);
  EXPECT_EQ(deaths.due(at(3000)), SIGTERM);
  EXPECT_EQ(deaths.due(at(3001)), 0);
  EXPECT_EQ(deaths.next().when(), at(5000));
  EXPECT_EQ(deaths.due(at(4999)), 0);
  EXPECT_EQ(deaths.due(at(5000)), SIGKILL);
  EXPECT_EQ(deaths.due(at(5999)), 0);
  EXPECT_EQ(deaths.due(at(6000)), SIGKILL);
}

TEST(Deaths, TheFirstFailureCounts) {
  Deaths deaths(4, false, 10);
  deaths.ended(3, kDone, at(0));
  deaths.ended(2, kKilled, at(10));
  deaths.ended(0, kFailed, at(20));
  EXPECT_EQ(deaths.due(at(3010)), SIGTERM);
  deaths.ended(1, {.code = 0, .signal = SIGTERM}, at(3020));
  EXPECT_TRUE(deaths.all_ended());
  EXPECT_EQ(deaths.first_failure(), 2);
  EXPECT_EQ(deaths.failures(), 2);  // a rank that tutti-run ended is no failure
  EXPECT_EQ(deaths.exit_code(), 137);
}

TEST(Deaths, TheRankThatSaidThatItErredFailedFirst) {
  Deaths deaths(4, false, 10);
  deaths.erred_first(1);
  deaths.ended(3, kKilled, at(0));
  deaths.ended(2, kKilled, at(10));
  EXPECT_EQ(deaths.first_failure(), 3);  // rank 1 has not failed yet, and may continue
  EXPECT_EQ(deaths.exit_code(), 137);
  deaths.ended(1, kFailed, at(20));
  EXPECT_EQ(deaths.first_failure(), 1);
  EXPECT_EQ(deaths.failures(), 3);
  EXPECT_EQ(deaths.exit_code(), 7);
  EXPECT_EQ(deaths.next().when(), at(3000));  // counted from the first rank's end
}

TEST(Deaths, ARankThatErredAndEndsWellOrIsEndedIsNotTheFirstFailure) {
  Deaths well(2, false, 10);
  well.erred_first(0);
  well.ended(1, kFailed, at(0));
  well.ended(0, kDone, at(10));
  EXPECT_EQ(well.first_failure(), 1);
  Deaths ended(2, false, 10);
  ended.erred_first(0);
  ended.ended(1, kFailed, at(0));
  EXPECT_EQ(ended.due(at(3000)), SIGTERM);
  ended.ended(0, {.code = 0, .signal = SIGTERM}, at(3010));
  EXPECT_EQ(ended.first_failure(), 1);
  Deaths foreign(2, false, 10);
  foreign.erred_first(17);  // a rank that this job does not have
  foreign.ended(1, kFailed, at(0));
  EXPECT_EQ(foreign.first_failure(), 1);
}

// A killed rank makes another rank fail, through a communicator that has not yet detected the
// death.
TEST(Deaths, AnErrorThatIsToldAfterAFailureComesOfIt) {
  Deaths deaths(2, false, 10);
  deaths.ended(1, kKilled, at(0));
  deaths.erred_first(0);
  deaths.ended(0, kFailed, at(10));
  EXPECT_EQ(deaths.first_failure(), 1);
  EXPECT_EQ(deaths.exit_code(), 137);
}

TEST(Deaths, AnEndIsCountedOnce) {
  Deaths deaths(2, false, 10);
  deaths.ended(0, kFailed, at(0));
  deaths.ended(0, kDone, at(1));
  EXPECT_FALSE(deaths.all_ended());
  EXPECT_EQ(deaths.end_of(0)->code, 7);
}

TEST(Deaths, KeepGoing) {
  Deaths deaths(3, true, 10);
  deaths.ended(1, kKilled, at(0));
  EXPECT_TRUE(deaths.next().is_never());
  EXPECT_EQ(deaths.due(at(100'000)), 0);
  deaths.ended(0, kDone, at(1));
  deaths.ended(2, kDone, at(2));
  EXPECT_EQ(deaths.exit_code(), 0);
  EXPECT_EQ(deaths.first_failure(), 1);
}

TEST(Deaths, AskedToEnd) {
  Deaths deaths(2, false, 10);
  deaths.asked_to_end(SIGINT, at(0));
  // A rank that obeys the signal does not shorten the time of the others.
  deaths.ended(0, {.code = 0, .signal = SIGINT}, at(1));
  EXPECT_EQ(deaths.due(at(9'999)), 0);
  EXPECT_EQ(deaths.due(at(10'000)), SIGTERM);
  EXPECT_EQ(deaths.due(at(14'999)), 0);
  EXPECT_EQ(deaths.due(at(15'000)), SIGKILL);
  deaths.ended(1, {.code = 0, .signal = SIGKILL}, at(15'001));
  EXPECT_TRUE(deaths.next().is_never());
  EXPECT_EQ(deaths.exit_code(), 130);
}

TEST(Deaths, WithoutGraceTheyMayTakeTheirTime) {
  Deaths deaths(2, false, 0);
  deaths.asked_to_end(SIGINT, at(0));
  EXPECT_TRUE(deaths.next().is_never());
  EXPECT_EQ(deaths.due(at(100'000)), 0);
}

TEST(Deaths, KnowsWhichEndedWellBefore) {
  Deaths deaths(4, false, 10);
  for (const int rank : {2, 1}) deaths.ended(rank, kDone, at(0));
  deaths.ended(0, kFailed, at(1));
  deaths.ended(3, kDone, at(2));
  EXPECT_THAT(deaths.ended_before_failure(), testing::ElementsAre(1, 2));
}

TEST(Deaths, RanksThatWereNeverStartedAreNotWaitedFor) {
  Deaths deaths(3, false, 10);
  deaths.asked_to_end(SIGTERM, at(0));
  deaths.ended(0, {.code = 0, .signal = SIGTERM}, at(1));
  for (const int rank : {1, 2}) deaths.left_out(rank);
  EXPECT_TRUE(deaths.all_ended());
  EXPECT_EQ(deaths.failures(), 0);
  EXPECT_EQ(deaths.exit_code(), 143);
}

TEST(Deaths, AskedTwiceEndsAtOnce) {
  Deaths deaths(2, false, 10);
  deaths.asked_to_end(SIGINT, at(0));
  deaths.asked_to_end(SIGINT, at(10));
  EXPECT_EQ(deaths.due(at(10)), SIGKILL);
}

TEST(Deaths, AskedAndObeyedIsNoFailure) {
  Deaths deaths(1, false, 10);
  deaths.asked_to_end(SIGTERM, at(0));
  deaths.ended(0, kDone, at(1));
  EXPECT_EQ(deaths.exit_code(), 0);
}

TEST(End, IsToldInWords) {
  EXPECT_EQ(kFailed.text(), "ended with code 7");
  EXPECT_EQ(kKilled.text(), "was killed by signal 9 (Killed)");
  EXPECT_EQ(kKilled.exit_code(), 137);
}

}  // namespace
}  // namespace tutti::run
