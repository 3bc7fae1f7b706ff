#include "tutti/core/watch/liveness.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <limits>

#include "tutti/base/process/process_state.h"
#include "tutti/core/watch/stall.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;
const auto kStart = Clock::time_point() + std::chrono::hours(1);

TEST(Liveness, AsksOnlyWhileSomethingIsPending) {
  Liveness liveness(0, 3, 4.0);
  EXPECT_TRUE(liveness.tick(kStart, false).ping.empty());
  EXPECT_EQ(liveness.tick(kStart, false).next, Clock::time_point::max());
  EXPECT_TRUE(liveness.tick(kStart, true).ping.empty());
  EXPECT_TRUE(liveness.tick(kStart + milliseconds(400), true).ping.empty());
  EXPECT_EQ(liveness.tick(kStart + milliseconds(501), true).ping, (std::vector<int>{1, 2}));
}

TEST(Liveness, SilentAfterTheTimeoutAndNotBefore) {
  Liveness liveness(0, 2, 4.0);
  for (int ms = 0; ms < 4000; ms += 500)
    EXPECT_TRUE(liveness.tick(kStart + milliseconds(ms), true).silent.empty());
  EXPECT_EQ(liveness.tick(kStart + milliseconds(4000), true).silent, std::vector<int>{1});
}

TEST(Liveness, AnAnswerResetsTheClock) {
  Liveness liveness(1, 2, 2.0);
  for (int ms = 0; ms < 20000; ms += 400) {
    EXPECT_TRUE(liveness.tick(kStart + milliseconds(ms), true).silent.empty());
    if (ms % 1200 == 0) liveness.heard(0, kStart + milliseconds(ms));
  }
}

TEST(Liveness, ARankThatWasStoppedItselfAccusesNobody) {
  Liveness liveness(0, 2, 2.0);
  liveness.tick(kStart, true);
  EXPECT_TRUE(liveness.tick(kStart + std::chrono::minutes(5), true).silent.empty());
}

TEST(Liveness, TellsEverybodyWhoIsOverdueTheLongestFirst) {
  Liveness liveness(0, 4, 4.0);
  for (int ms = 0; ms < 4000; ms += 500) {
    const auto now = kStart + milliseconds(ms);
    EXPECT_TRUE(liveness.tick(now, true).silent.empty());
    if (ms <= 1000) liveness.heard(1, now);
    if (ms <= 3000) liveness.heard(3, now);
  }
  EXPECT_EQ(liveness.tick(kStart + milliseconds(4000), true).silent, (std::vector<int>{2, 1}));
}

TEST(Liveness, NobodyWaitsForAnAnswerOfARankThatLeft) {
  Liveness liveness(0, 3, 2.0);
  liveness.tick(kStart, true);
  liveness.left(1);
  EXPECT_EQ(liveness.tick(kStart + milliseconds(600), true).ping, std::vector<int>{2});
  EXPECT_TRUE(liveness.tick(kStart + milliseconds(1300), true).silent.empty());
  EXPECT_EQ(liveness.tick(kStart + milliseconds(2000), true).silent, std::vector<int>{2});
}

TEST(Liveness, OnlyAMessageIsEvidenceOfLife) {
  Liveness liveness(0, 2, 4.0);
  liveness.tick(kStart, true);
  EXPECT_TRUE(std::isinf(liveness.seconds_since_heard(1, kStart + milliseconds(100))));
  liveness.heard(1, kStart + milliseconds(200));
  EXPECT_DOUBLE_EQ(liveness.seconds_since_heard(1, kStart + milliseconds(700)), 0.5);
  // A new wait is not evidence of life.
  liveness.tick(kStart + std::chrono::minutes(1), false);
  liveness.tick(kStart + std::chrono::minutes(2), true);
  EXPECT_GT(liveness.seconds_since_heard(1, kStart + std::chrono::minutes(2)), 100);
}

TEST(Liveness, TheSystemKnowsWhoStandsStillAndWhoHasEnded) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::raise(SIGSTOP);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  EXPECT_EQ(process_state(child), ProcessState::stopped);
  EXPECT_EQ(process_state(::getpid()), ProcessState::runs);
  ::kill(child, SIGCONT);
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(process_state(child), ProcessState::ended);
}

TEST(Stall, NamesTheMisspeltName) {
  const Negotiator::Waiting bias{"fc2.bias", CollectiveKind::allreduce, kStart, {0, 1, 3}, {2}};
  const Negotiator::Waiting bais{"fc2.bais", CollectiveKind::allreduce, kStart, {2}, {0, 1, 3}};
  std::vector<RankKnowledge> ranks(4);
  ranks[2].status = RankStatus{.last_submitted = "fc2.bais"};
  EXPECT_EQ(stall_line(bias, {bias, bais}, ranks, kStart + std::chrono::seconds(2)),
            "\"fc2.bias\" has waited 2.0 s for rank 2 (ranks 0 1 3 are there). Rank 2 is alive and "
            "submitted \"fc2.bais\", which others lack: a misspelt name?");
}

TEST(Stall, CallsARankAliveOnlyWithEvidenceOfTheLastSecond) {
  const Negotiator::Waiting waiting{"w", CollectiveKind::allreduce, kStart, {0}, {1}};
  std::vector<RankKnowledge> ranks(2);
  const auto line = [&] {
    return stall_line(waiting, {waiting}, ranks, kStart + std::chrono::seconds(3));
  };
  ranks[1] = {RankStatus{.last_submitted = "loss"}, 0.9, false};
  EXPECT_THAT(line(),
              testing::HasSubstr("Rank 1 is alive and last submitted \"loss\"; it is late."));
  ranks[1].heard_seconds = 1.1;
  EXPECT_THAT(line(),
              testing::HasSubstr("Rank 1 has not answered for 1.1 s: stopped, or cut off?"));
  ranks[1].is_stopped = true;
  EXPECT_THAT(line(), testing::HasSubstr("Rank 1 is stopped, by SIGSTOP or a debugger."));
  ranks[1] = {std::nullopt, std::numeric_limits<double>::infinity(), false};
  EXPECT_THAT(line(), testing::HasSubstr("No message has come from rank 1 yet."));
  ranks[1].heard_seconds = 0.1;
  EXPECT_THAT(line(), testing::HasSubstr("Rank 1 is alive and has not yet reported what it does."));
}

TEST(Stall, SaysWhatNeverMeets) {
  const Negotiator::Waiting waiting{"w", CollectiveKind::allreduce, kStart, {0}, {1}};
  std::vector<RankKnowledge> ranks(2);
  ranks[1].status = RankStatus{.blocking_calls = 7, .blocking = "w"};
  EXPECT_THAT(stall_line(waiting, {waiting}, ranks, kStart + std::chrono::seconds(3)),
              testing::HasSubstr("a blocking call and an asynchronous one never meet"));
  EXPECT_EQ(describe_late_rank(1, ranks[1]),
            "Rank 1 is alive and waits in the blocking call \"w\".");
}

TEST(Stall, ReportsAtTwoTenAndEveryMinute) {
  const StallClock clock(2);
  EXPECT_EQ(clock.next(0), 2);
  EXPECT_EQ(clock.next(2.0), 10);
  EXPECT_EQ(clock.next(10.1), 70.1);
}

// Evidence that is reported late, such as that of the network, does not replace newer evidence.
TEST(Liveness, OnlyTheLatestSignOfLifeCounts) {
  Liveness liveness(0, 2, 4);
  liveness.tick(kStart, true);
  liveness.heard(1, kStart + milliseconds(900));
  liveness.heard(1, kStart + milliseconds(500));
  EXPECT_NEAR(liveness.quiet_seconds(1, kStart + milliseconds(1000)), 0.1, 1e-9);
}

}  // namespace
}  // namespace tutti
