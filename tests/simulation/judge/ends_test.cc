// The judge's rules on when calls end and with which errors.
#include <gtest/gtest.h>

#include "tests/simulation/judge/small_world.h"
#include "tutti/core/agreement/messages.h"

namespace tutti::simulation {
namespace {

constexpr std::string_view kSums = "world size=3\nranks 0,1,2: submit t allreduce 4 c=1; wait\n";
constexpr std::string_view kKill = "fault kill rank=2 at=10\n";

bool is_fine(const SmallWorld& world, void (*invariant)(const View&, Findings&)) {
  const Findings findings = world.find(invariant);
  for (const auto& finding : findings) std::cout << finding.text << "\n";
  return findings.empty();
}

// Returns a world in which rank 2 was killed at 10. The others learned of it at `heard`.
SmallWorld killed(Micros heard) {
  SmallWorld world(std::string(kSums) + std::string(kKill));
  world.rank(2).killed = 10;
  for (const int rank : {0, 1}) {
    world.fail(rank, "t", ErrorCode::peer_lost, 2, heard);
    world.rank(rank).broken = heard;
    world.rank(rank).error_code = static_cast<int>(ErrorCode::peer_lost);
    world.rank(rank).error_rank = 2;
  }
  return world;
}

TEST(Ends, EveryCallEnds) {
  SmallWorld world(kSums);
  EXPECT_TRUE(is_fine(world, calls_end));
  world.operation(1, "t").ended = kNever;
  EXPECT_FALSE(is_fine(world, calls_end));
  SmallWorld open(kSums);
  open.rank(0).over = kNever;
  EXPECT_FALSE(is_fine(open, calls_end));
}

TEST(Ends, AProgramThatWaitsInACircleNeedNotEnd) {
  SmallWorld world(
      "world\nranks 0: submit a allreduce 1; wait\nranks 1: submit b allreduce 1; wait\n");
  world.operation(0, "a").ended = world.operation(1, "b").ended = kNever;
  world.operation(0, "a").callbacks = world.operation(1, "b").callbacks = 0;
  for (const int rank : {0, 1}) world.rank(rank).closing = world.rank(rank).over = kNever;
  EXPECT_TRUE(world.find_all().empty());
  world.rank(1).closing = 50;
  EXPECT_FALSE(world.find_all().empty());
}

TEST(Ends, ALossIsHeardOfWithinALatencyAndTheInquiry) {
  EXPECT_TRUE(is_fine(killed(2160), calls_end));
  EXPECT_TRUE(is_fine(killed(306310), calls_end));
  EXPECT_FALSE(is_fine(killed(306311), calls_end));
  SmallWorld late = killed(1306310);
  EXPECT_FALSE(is_fine(late, calls_end));
  late.from().world.fails_before_reason = true;
  EXPECT_TRUE(is_fine(late, calls_end));
}

TEST(Ends, ADepartureIsHeardOfWithinThreeMessages) {
  const auto left = [](Micros heard) {
    SmallWorld world(kSums);
    world.rank(2).closing = world.rank(2).farewell = 20;
    world.fail(2, "t", ErrorCode::closed, -1, 20);
    for (const int rank : {0, 1}) world.fail(rank, "t", ErrorCode::peer_left, 2, heard);
    return world;
  };
  EXPECT_TRUE(is_fine(left(6320), calls_end));
  EXPECT_FALSE(is_fine(left(6321), calls_end));
  SmallWorld asked_again = left(10520);
  EXPECT_FALSE(is_fine(asked_again, calls_end));
  asked_again.rank(0).messages[static_cast<size_t>(MessageType::resend)] = 1;
  EXPECT_TRUE(is_fine(asked_again, calls_end));
  SmallWorld late = left(256320);
  EXPECT_FALSE(is_fine(late, calls_end));
  late.from().world.cannot_cancel = true;
  EXPECT_TRUE(is_fine(late, calls_end));
  EXPECT_TRUE(is_fine(late, errors_have_one_cause));
}

// Returns a world in which rank 2 joins, and leaves at 20. Rank 0 joined at 0, and learns of the
// leaving at `heard`.
SmallWorld joined_and_left(Micros heard) {
  SmallWorld world("world size=3\nranks 0,2: join\n");
  world.rank(2).closing = world.rank(2).farewell = 20;
  world.fail(2, "join", ErrorCode::closed, -1, 20);
  world.fail(0, "join", ErrorCode::peer_left, 2, heard);
  return world;
}

TEST(Ends, AJoinNeedsNoRankThatLeftAfterItHadJoined) {
  SmallWorld world = joined_and_left(50000);
  world.rank(1).closing = world.rank(1).farewell = 49000;  // it leaves because of rank 2
  EXPECT_TRUE(is_fine(world, calls_end));
  EXPECT_TRUE(is_fine(world, errors_have_one_cause));
  world.operation(0, "join").ended = 49000 + 6300;
  EXPECT_TRUE(is_fine(world, calls_end));
  world.operation(0, "join").ended = 49000 + 6301;
  EXPECT_FALSE(is_fine(world, calls_end));
  EXPECT_FALSE(is_fine(joined_and_left(50), errors_have_one_cause)) << "rank 1 goes on";
}

TEST(Ends, AJoinNeedsARankThatLeftWithoutHavingJoined) {
  SmallWorld world = joined_and_left(6320);
  world.operation(2, "join").is_refused = true;
  EXPECT_TRUE(is_fine(world, calls_end));
  EXPECT_TRUE(is_fine(world, errors_have_one_cause));
  world.operation(0, "join").ended = 6321;
  EXPECT_FALSE(is_fine(world, calls_end));
}

TEST(Ends, AJoinMayNeedARankThatLeftOverOtherOperations) {
  SmallWorld world("world size=3\nranks 0: join\nranks 2: submit t allreduce 4; join\n");
  world.rank(2).closing = world.rank(2).farewell = 120;
  for (const auto* name : {"t", "join"}) world.fail(2, name, ErrorCode::closed, -1, 120);
  world.fail(0, "join", ErrorCode::peer_left, 2, 200);
  EXPECT_TRUE(is_fine(world, errors_have_one_cause));
  world.operation(0, "join").ended = 50000;
  world.rank(1).closing = world.rank(1).farewell = 49000;
  EXPECT_TRUE(is_fine(world, calls_end));
}

TEST(Ends, SilenceIsHeardOfWithinItsLimitAndAQuarter) {
  const auto silent = [](Micros heard) {
    SmallWorld world(std::string(kSums) + "fault stop rank=2 at=10 length=60000000\n");
    world.from().world.heals_at = 60000010;
    world.rank(2).stopped = {{10, 60000010}};
    for (const int rank : {0, 1}) world.fail(rank, "t", ErrorCode::peer_silent, 2, heard);
    world.operation(2, "t").ended = 60000020;
    return world;
  };
  EXPECT_TRUE(is_fine(silent(12502110), calls_end));
  EXPECT_FALSE(is_fine(silent(12502111), calls_end));
  EXPECT_TRUE(is_fine(silent(12502110), errors_have_one_cause));
}

TEST(Ends, ALossNamesTheDead) {
  SmallWorld world = killed(110);
  for (auto& operation : world.record().operations)
    operation.error_text = "rank 2 was killed by signal 9 (Killed)";
  EXPECT_TRUE(is_fine(world, errors_have_one_cause));
  world.operation(1, "t").error_text = "rank 2 was lost (connection reset)";
  EXPECT_FALSE(is_fine(world, errors_have_one_cause));
  world.from().world.has_launcher = false;
  EXPECT_TRUE(is_fine(world, errors_have_one_cause));
  world.operation(0, "t").error_rank = 1;
  EXPECT_FALSE(is_fine(world, errors_have_one_cause));
  SmallWorld two = killed(110);
  two.rank(1).error_rank = 0;
  EXPECT_FALSE(is_fine(two, errors_have_one_cause));
}

TEST(Ends, ABlockingPairLacksMemoryWhereARankHasNone) {
  SmallWorld world(
      "world size=3 over_streams=1 over_memory=1 lacks_memory=2\n"
      "ranks 1: block b send 4 root=2\nranks 2: block b recv 4 root=1\n");
  world.fail(1, "b", ErrorCode::out_of_memory, -1, 50);
  world.fail(2, "b", ErrorCode::out_of_memory, -1, 50);
  EXPECT_TRUE(is_fine(world, errors_have_one_cause));
  world.from().world.lacks_memory = 0;
  EXPECT_FALSE(is_fine(world, errors_have_one_cause));
}

TEST(Ends, MemoryThatPeersReachMayBeWrittenAfterALoss) {
  SmallWorld world = killed(110);
  auto& lost = world.operation(1, "t");
  lost.touched_after_end = world.rank(1).memory_written_late = true;
  EXPECT_FALSE(is_fine(world, the_broken_start_nothing));
  EXPECT_FALSE(is_fine(world, memory_outlives_its_use));
  lost.is_reached = true;
  EXPECT_TRUE(is_fine(world, the_broken_start_nothing));
  EXPECT_TRUE(is_fine(world, memory_outlives_its_use));
  // No peer writes to the output after a mismatch or after a good end.
  world.rank(1).broken = kNever;
  lost.error_code = static_cast<int>(ErrorCode::mismatch);
  EXPECT_FALSE(is_fine(world, the_broken_start_nothing));
  lost.error_code = 0;
  EXPECT_FALSE(is_fine(world, the_broken_start_nothing));
  EXPECT_FALSE(is_fine(world, memory_outlives_its_use));
}

TEST(Ends, AnErrorNeedsItsCause) {
  const auto is_allowed = [](ErrorCode code, int about, auto&& change) {
    SmallWorld world(kSums);
    world.fail(1, "t", code, about, 50);
    EXPECT_FALSE(world.find(errors_have_one_cause).empty());
    change(world);
    return is_fine(world, errors_have_one_cause);
  };
  EXPECT_TRUE(is_allowed(ErrorCode::closed, -1, [](auto& w) { w.rank(1).closing = 40; }));
  EXPECT_TRUE(is_allowed(ErrorCode::peer_left, 0,
                         [](auto& w) { w.rank(0).closing = w.rank(0).farewell = 40; }));
  EXPECT_FALSE(is_allowed(ErrorCode::peer_left, 0, [](auto& w) { w.rank(0).closing = 40; }));
  EXPECT_FALSE(is_allowed(ErrorCode::peer_left, 0,
                          [](auto& w) { w.rank(2).closing = w.rank(2).farewell = 40; }));
  EXPECT_TRUE(is_allowed(ErrorCode::peer_lost, 0, [](auto& w) { w.rank(0).killed = 40; }));
  EXPECT_FALSE(is_allowed(ErrorCode::peer_lost, 0, [](auto& w) { w.rank(0).killed = 60; }));
  EXPECT_TRUE(is_allowed(ErrorCode::peer_silent, 0, [](auto& w) {
    w.rank(0).stopped = {{0, kNever}};
  }));
  EXPECT_TRUE(
      is_allowed(ErrorCode::timeout, 0, [](auto& w) { w.from().world.operation_timeout = 50; }));
  EXPECT_FALSE(
      is_allowed(ErrorCode::timeout, 0, [](auto& w) { w.from().world.operation_timeout = 60; }));
  const auto with = [](Fault::Kind kind) {
    return [kind](SmallWorld& w) { w.from().faults = {{.kind = kind}}; };
  };
  EXPECT_TRUE(is_allowed(ErrorCode::out_of_memory, 0, with(Fault::Kind::throws_in_start)));
  EXPECT_TRUE(is_allowed(ErrorCode::callback, 0, with(Fault::Kind::throws_in_observer)));
  EXPECT_TRUE(is_allowed(ErrorCode::io, 0, with(Fault::Kind::operation_fails)));
  EXPECT_TRUE(is_allowed(ErrorCode::corrupt_data, 0, [](auto& w) { w.record().damaged = 50; }));
  EXPECT_FALSE(is_allowed(ErrorCode::corrupt_data, 0, [](auto& w) { w.record().damaged = 51; }));
  EXPECT_TRUE(is_allowed(ErrorCode::invalid_argument, 1,
                         [](auto& w) { w.from().ranks[1][0].push_back({Action::Kind::retire}); }));
  EXPECT_FALSE(is_allowed(ErrorCode::corrupt_data, 0, with(Fault::Kind::clog)));
  EXPECT_FALSE(is_allowed(ErrorCode::version, 0, with(Fault::Kind::kill)));
}

TEST(Ends, AMismatchIsOfRanksThatDisagreeAndHasOneText) {
  const std::string odd =
      "world size=2\nranks 0: submit t allreduce 4\nranks 1: submit t allreduce 5\n";
  SmallWorld world(odd);
  for (const int rank : {0, 1}) world.fail(rank, "t", ErrorCode::mismatch, 1, 60);
  EXPECT_TRUE(is_fine(world, errors_have_one_cause));
  world.operation(1, "t").error_text = "something else";
  EXPECT_FALSE(is_fine(world, errors_have_one_cause));
  SmallWorld agreeing(kSums);
  agreeing.fail(0, "t", ErrorCode::mismatch, 1, 60);
  EXPECT_FALSE(is_fine(agreeing, errors_have_one_cause));
}

TEST(Ends, ANameIsADuplicateOnlyWhileItIsPending) {
  SmallWorld world(
      "world\nranks 0: submit t allreduce 4; submit t allreduce 4\n"
      "ranks 1: submit t allreduce 4\n");
  auto& second = world.operation(0, "t", 1);
  second.is_refused = true;
  second.error_code = static_cast<int>(ErrorCode::duplicate_name);
  EXPECT_FALSE(is_fine(world, errors_have_one_cause));
  world.operation(0, "t").ended = 110;
  EXPECT_TRUE(is_fine(world, errors_have_one_cause));
}

TEST(Ends, ARankThatLeftIsNamedWithItsOwnError) {
  SmallWorld world(kSums);
  world.rank(0).closing = world.rank(0).farewell = 40;
  world.fail(1, "t", ErrorCode::peer_left, 0, 50);
  EXPECT_TRUE(is_fine(world, errors_have_one_cause));
  world.operation(1, "t").error_text = "rank 0 closed because of an error (bad), so nothing";
  EXPECT_FALSE(is_fine(world, errors_have_one_cause));
  world.rank(0).closing_error = "bad";
  EXPECT_TRUE(is_fine(world, errors_have_one_cause));
  world.rank(0).closing_error = "worse";
  EXPECT_FALSE(is_fine(world, errors_have_one_cause));
}

TEST(Ends, TwoOthersThatSendEachOtherDoNotNeedTheLeaver) {
  SmallWorld world(
      "world size=4\nranks 1: submit p send 4 root=2\nranks 2: submit p recv 4 root=1\n");
  world.rank(3).closing = world.rank(3).farewell = 10;
  world.fail(1, "p", ErrorCode::peer_left, 3, 50);
  EXPECT_FALSE(is_fine(world, errors_have_one_cause));
  world.operation(1, "p").error_rank = 0;  // rank 0 matches names
  world.rank(0).closing = world.rank(0).farewell = 10;
  EXPECT_TRUE(is_fine(world, errors_have_one_cause));
}

TEST(Ends, AReceiveFromAnyRankNeedsTheLastThatMaySend) {
  SmallWorld world("world size=4\nranks 1: submit p recv 4 root=-1\n");
  world.rank(2).closing = world.rank(2).farewell = 10;
  world.fail(1, "p", ErrorCode::peer_left, 2, 50);
  EXPECT_FALSE(is_fine(world, errors_have_one_cause));
  for (const int other : {0, 3}) world.rank(other).closing = world.rank(other).farewell = 40;
  EXPECT_TRUE(is_fine(world, errors_have_one_cause));
  SmallWorld taken(
      "world size=4\nranks 1: submit p recv 4 root=-1\nranks 2: submit p send 4 root=1\n");
  taken.rank(2).closing = taken.rank(2).farewell = 10;
  taken.fail(2, "p", ErrorCode::closed, -1, 10);
  taken.fail(1, "p", ErrorCode::peer_left, 2, 50);
  EXPECT_TRUE(is_fine(taken, errors_have_one_cause));
}

TEST(Ends, WhatAllAskedForEndsSoon) {
  SmallWorld world(kSums);
  world.operation(0, "t").ended = 1042000;
  EXPECT_TRUE(is_fine(world, calls_end));
  world.operation(0, "t").ended = 1042001;
  EXPECT_FALSE(is_fine(world, calls_end));
}

TEST(Ends, WhatWaitsForADamagedNameEndsOnceARankBreaks) {
  SmallWorld world(kSums);
  world.operation(1, "t").ended = kNever;
  world.record().damaged = 10;
  EXPECT_TRUE(is_fine(world, calls_end));
  world.rank(2).broken = 60;
  EXPECT_FALSE(is_fine(world, calls_end));
  SmallWorld limited(kSums);
  limited.operation(1, "t").ended = kNever;
  limited.record().damaged = 10;
  limited.from().world.operation_timeout = 1000;
  EXPECT_FALSE(is_fine(limited, calls_end));
}

}  // namespace
}  // namespace tutti::simulation
