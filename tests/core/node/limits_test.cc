// A node reports ranks that are late or never come, and ends operations at their limits. The test
// sets the time.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/node/stepped_ranks.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::SteppedRanks;
using testing::AllOf;
using testing::HasSubstr;

constexpr auto kLimit = milliseconds(1500);
void limit(Options& options) { options.operation_timeout = 1.5; }

// Runs one allreduce on each rank, and waits until it has ended on all of them.
void step_together(SteppedRanks& ranks, int size, const std::string& name) {
  std::vector<std::vector<float>> values(static_cast<size_t>(size), std::vector<float>{1});
  for (int rank = 0; rank < size; ++rank)
    ranks[rank].submit(name, values[static_cast<size_t>(rank)]);
  ranks.run(milliseconds(0));
  for (int rank = 0; rank < size; ++rank) {
    const auto end = ranks[rank].end_of(name);
    ASSERT_TRUE(end && !*end) << name << " on rank " << rank;
    EXPECT_EQ(values[static_cast<size_t>(rank)][0], static_cast<float>(size));
    ranks[rank].ended.clear();
  }
}

void expect_overdue(const Error& error, int late, const std::string& tensor,
                    const std::string& last) {
  EXPECT_EQ(error.code(), ErrorCode::timeout) << error.what();
  EXPECT_EQ(error.rank(), late) << error.what();
  EXPECT_EQ(error.tensor(), tensor);
  EXPECT_THAT(error.what(),
              AllOf(HasSubstr("TUTTI_OPERATION_TIMEOUT=1.5"),
                    HasSubstr(fmt::format("waits for rank {}. Rank {} is alive", late, late)),
                    HasSubstr(last)));
}

// Rank 0, which matches names, and another rank are late in turn.
TEST(Limit, ARankThatNeverSubmitsIsNamedWhenTheTimeIsUp) {
  for (const int late : {0, 2}) {
    SteppedRanks ranks(3, limit);
    step_together(ranks, 3, "before");
    std::vector<float> x{1}, y{1};
    for (const int rank : {0, 1, 2})
      if (rank != late) ranks[rank].submit("x", rank == 1 ? x : y);
    const auto ended = [&](int rank) { return ranks[rank].end_of("x").has_value(); };
    const auto took = ranks.run(seconds(10), [&] { return ended(1) && ended(2 - late); });
    EXPECT_GE(took, kLimit);
    EXPECT_LE(took, kLimit + milliseconds(20));
    for (const int rank : {1, 2 - late}) {
      ASSERT_TRUE(ended(rank));
      expect_overdue(ranks[rank].end_of("x")->value(), late, "x", "last submitted \"before\"");
      EXPECT_EQ(ranks[rank].node().phase(), Phase::broken);
    }
  }
}

TEST(Limit, OfSeveralLateRanksTheErrorCarriesTheFirst) {
  SteppedRanks ranks(4, limit);
  step_together(ranks, 4, "before");
  std::vector<float> x{1};
  ranks[0].submit("x", x);
  ranks[2].submit("x", x);
  ranks.run(seconds(10), [&] { return ranks[0].end_of("x").has_value(); });
  ASSERT_TRUE(ranks[0].end_of("x"));
  const Error error = ranks[0].end_of("x")->value();
  EXPECT_EQ(error.code(), ErrorCode::timeout) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("waits for ranks 1 3"));
  EXPECT_EQ(error.rank(), 1);
}

TEST(Limit, ALateRankInAReplayedStepIsNamedWhenTheTimeIsUp) {
  SteppedRanks ranks(2, limit);
  for (int step = 0; step < 10; ++step)
    for (const char* name : {"a", "b"}) step_together(ranks, 2, name);
  std::vector<float> a{1};
  ranks[0].submit("a", a);
  const auto took = ranks.run(seconds(10), [&] { return ranks[0].end_of("a").has_value(); });
  EXPECT_GE(took, kLimit);
  EXPECT_LE(took, kLimit + seconds(1)) << "after a second it is asked for instead";
  ASSERT_TRUE(ranks[0].end_of("a"));
  expect_overdue(ranks[0].end_of("a")->value(), 1, "a", "last submitted \"b\"");
}

TEST(Limit, ALateRankInABlockingCallIsNamedWhenTheTimeIsUp) {
  SteppedRanks ranks(2, limit);
  step_together(ranks, 2, "before");
  for (int call = 0; call < 10; ++call)
    for (const int rank : {0, 1}) {
      ranks[rank].node().blocking().begin_all();
      ranks[rank].node().blocking().end(nullptr);
    }
  ranks[0].block("x", ranks.now());
  const auto took = ranks.run(seconds(10), [&] { return ranks[0].node().broken() != nullptr; });
  EXPECT_GE(took, kLimit);
  EXPECT_LE(took, kLimit + milliseconds(20));
  ASSERT_NE(ranks[0].node().broken(), nullptr);
  expect_overdue(*ranks[0].node().broken(), 1, "x",
                 "last submitted \"before\", after 10 blocking calls");
}

// A late rank answers, so it is never silent, however long it takes.
TEST(Limit, WhoIsLateIsWaitedForHoweverLate) {
  for (const bool is_replayed : {false, true}) {
    SteppedRanks ranks(3, [&](Options& options) {
      options.peer_timeout = 4;
      options.replay = is_replayed;
    });
    for (int step = 0; step < 10; ++step) step_together(ranks, 3, "x");
    std::vector<float> x[] = {{1}, {2}, {6}};
    for (const int rank : {0, 1}) ranks[rank].submit("x", x[rank]);
    ranks.run(seconds(60));
    for (const int rank : {0, 1}) EXPECT_FALSE(ranks[rank].end_of("x"));
    ranks[2].submit("x", x[2]);
    ranks.run(milliseconds(0));
    for (const int rank : {0, 1, 2}) {
      ASSERT_TRUE(ranks[rank].end_of("x"));
      EXPECT_FALSE(*ranks[rank].end_of("x"));
      EXPECT_EQ(x[rank][0], 9);
    }
  }
}

// --- join() ------------------------------------------------------------------------------------

// Only rank 0 knows which ranks have joined. If it hangs, each waiting rank must check for itself.
TEST(Join, WhoStandsStillIsSilent) {
  for (const int still : {2, 0}) {
    SteppedRanks ranks(3, [](Options& options) { options.peer_timeout = 1.5; });
    step_together(ranks, 3, "before");
    std::vector<int> others;
    for (const int rank : {0, 1, 2})
      if (rank != still) {
        ranks[rank].join();
        others.push_back(rank);
      }
    const auto begin = ranks.now();
    const auto is_over = [&](int rank) { return ranks[rank].end_of("join").has_value(); };
    while (!(is_over(1) && is_over(2 - still)) && ranks.now() - begin < seconds(20)) {
      ranks.pass(milliseconds(10));
      ranks.settle(others);
    }
    EXPECT_GE(ranks.now() - begin, milliseconds(1500));
    EXPECT_LE(ranks.now() - begin, milliseconds(2000));
    for (const int rank : others) {
      ASSERT_TRUE(is_over(rank)) << "rank " << rank << " waits for rank " << still;
      const Error error = ranks[rank].end_of("join")->value();
      EXPECT_EQ(error.code(), ErrorCode::peer_silent) << error.what();
      EXPECT_EQ(error.rank(), still);
    }
  }
}

// The rank is late, not silent. It is reported, and then the operation timeout ends the join on all
// ranks.
TEST(Join, WhoIsLateIsReportedAndTimesOut) {
  for (const int late : {2, 0}) {
    SteppedRanks ranks(3, [](Options& options) {
      options.operation_timeout = 1.5;
      options.stall_warning = 0.6;
    });
    step_together(ranks, 3, "before");
    for (const int rank : {0, 1, 2})
      if (rank != late) ranks[rank].join();
    ranks.run(milliseconds(1000));
    EXPECT_THAT(ranks[0].lines, testing::Contains(testing::ContainsRegex(fmt::format(
                                    "\"join\" has waited [0-9.]+ s for rank {}", late))));
    for (const int rank : {1, 2 - late}) EXPECT_FALSE(ranks[rank].end_of("join"));
    ranks.run(milliseconds(600));
    for (const int rank : {1, 2 - late}) {
      ASSERT_TRUE(ranks[rank].end_of("join"));
      expect_overdue(ranks[rank].end_of("join")->value(), late, "join",
                     "last submitted \"before\"");
    }
    ASSERT_NE(ranks[late].node().broken(), nullptr);
    EXPECT_THAT(ranks[late].node().broken()->what(),
                HasSubstr("\"join\" took more than TUTTI_OPERATION_TIMEOUT=1.5 s"));
  }
}

// A rank that is out of data waits in join() for as long as the others go on.
TEST(Join, OthersThatGoOnAreNotLate) {
  SteppedRanks ranks(3, limit);
  ranks[1].join();
  for (int step = 0; step < 40; ++step) {
    ranks.run(milliseconds(250));
    std::vector<float> x[] = {{1}, {}, {2}};
    for (const int rank : {0, 2}) ranks[rank].submit("x", x[rank]);
    ranks.run(milliseconds(0));
    for (const int rank : {0, 2}) ASSERT_EQ(x[rank][0], 3) << "step " << step;
  }
  EXPECT_FALSE(ranks[1].end_of("join"));
  for (const int rank : {0, 2}) ranks[rank].join();
  ranks.run(milliseconds(0));
  for (const int rank : {0, 1, 2}) {
    ASSERT_TRUE(ranks[rank].end_of("join"));
    EXPECT_FALSE(*ranks[rank].end_of("join"));
  }
}

// --- calls that never match ---------------------------------------------------------------------

TEST(NeverMeets, ABlockingAndAnAsynchronousCallOfOneName) {
  SteppedRanks ranks(2);
  std::vector<float> x{1};
  auto& entry = ranks[1].submit("x", x);
  ++entry.work->waiters;  // a thread waits for it
  ranks[0].block("x", ranks.now());
  const auto took = ranks.run(seconds(20), [&] { return ranks[1].end_of("x").has_value(); });
  EXPECT_LE(took, seconds(4));
  ASSERT_TRUE(ranks[1].end_of("x"));
  const Error error = ranks[1].end_of("x")->value();
  EXPECT_EQ(error.code(), ErrorCode::mismatch) << error.what();
  EXPECT_EQ(error.tensor(), "x");
  EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 0 waits in a blocking call"),
                                  HasSubstr("rank 1 for an asynchronous one"),
                                  HasSubstr("Call it the same way on all ranks")));
  ASSERT_NE(ranks[0].node().broken(), nullptr);
  EXPECT_STREQ(ranks[0].node().broken()->what(), error.what());
}

TEST(NeverMeets, ABlockingCallAndARankThatHasJoined) {
  SteppedRanks ranks(2);
  ++ranks[1].join().work->waiters;
  ranks[0].block("x", ranks.now());
  const auto took = ranks.run(seconds(20), [&] { return ranks[1].end_of("join").has_value(); });
  EXPECT_LE(took, seconds(4));
  ASSERT_TRUE(ranks[1].end_of("join"));
  EXPECT_EQ(ranks[1].end_of("join")->value().code(), ErrorCode::mismatch);
  ASSERT_NE(ranks[0].node().broken(), nullptr);
  EXPECT_THAT(ranks[0].node().broken()->what(),
              AllOf(HasSubstr("rank 0 waits in a blocking call"),
                    HasSubstr("rank 1 has joined (is out of data) and will not make it: join() "
                              "stands in for asynchronous allreduces only. Call "
                              "allreduce(...).wait() where ranks may have joined")));
}

// --- reports ------------------------------------------------------------------------------------

void warn_soon(Options& options) { options.stall_warning = 0.8; }

TEST(Report, SaysWhereTheLateRankIs) {
  SteppedRanks ranks(2, warn_soon);
  for (int step = 0; step < 10; ++step)
    for (const char* name : {"a", "b"}) step_together(ranks, 2, name);
  std::vector<float> a{1};
  ranks[0].submit("a", a);
  ranks.run(milliseconds(700));
  EXPECT_THAT(ranks[0].lines, testing::Not(testing::Contains(HasSubstr("late"))));
  ranks.run(milliseconds(700));
  EXPECT_THAT(
      ranks[0].lines,
      testing::Contains(HasSubstr("Rank 1 is alive and last submitted \"b\"; it is late.")));
  EXPECT_THAT(ranks[1].lines, testing::Not(testing::Contains(HasSubstr("late"))));
}

TEST(Report, ComesOnceAndFailsNothing) {
  SteppedRanks ranks(2, [](Options& options) {
    options.stall_warning = 1.2;  // a report would come only after rank 1 was asked where it is
    options.peer_timeout = 20;
  });
  std::vector<float> x[] = {{1}, {1}};
  ranks[0].submit("x", x[0]);
  ranks.run(seconds(5));
  EXPECT_THAT(ranks[0].lines, testing::ElementsAre(testing::MatchesRegex(
                                  "\"x\" has waited 1\\.. s for rank 1 \\(rank 0 is there\\)\\. "
                                  "Rank 1 is alive.*")));
  ranks[1].submit("x", x[1]);
  ranks.run(milliseconds(0));
  for (const int rank : {0, 1}) {
    ASSERT_TRUE(ranks[rank].end_of("x"));
    EXPECT_FALSE(*ranks[rank].end_of("x"));
    EXPECT_EQ(x[rank][0], 2);
  }
  EXPECT_THAT(ranks[1].lines, testing::IsEmpty());
}

TEST(Report, NothingIsWatchedWhileNothingIsPending) {
  SteppedRanks ranks(2, warn_soon);
  step_together(ranks, 2, "before");
  ranks.run(milliseconds(50));
  EXPECT_EQ(ranks[0].node().wake_at(), Clock::time_point::max());
  std::vector<float> x{1}, y{1};
  ranks[0].submit("x", x);
  ranks.settle({0, 1});
  EXPECT_LE(ranks[0].node().wake_at(), ranks.now() + milliseconds(800));
  ranks[1].submit("x", y);
  ranks.run(milliseconds(50));
  EXPECT_EQ(ranks[0].node().wake_at(), Clock::time_point::max());
}

TEST(Report, NamesABlockingCall) {
  SteppedRanks ranks(2, warn_soon);
  ranks[0].block("late", ranks.now());
  ranks.run(milliseconds(1400));
  ASSERT_EQ(ranks[0].lines.size(), 1u);
  EXPECT_THAT(
      ranks[0].lines[0],
      testing::ContainsRegex("\"late\", a blocking call, has waited 0\\.[0-9] s for rank 1"));
  EXPECT_TRUE(ranks[1].lines.empty());
}

}  // namespace
}  // namespace tutti
