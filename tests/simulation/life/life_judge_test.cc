// Tests of the life tier's judge with correct records, and with records that have one mistake.
#include "tests/simulation/life/life_judge.h"

#include <gtest/gtest.h>

namespace tutti::simulation {
namespace {

using Call = LifeRecord::Call;
using Kind = Call::Kind;

// Three ranks that have made a communicator.
class LifeJudge : public testing::Test {
 protected:
  LifeJudge() {
    from.size = 3;
    for (int rank = 0; rank < 3; ++rank) {
      record.processes.push_back({.who = {.rank = rank}, .ended = 2, .finished = true});
      record.processes.back().was_in = true;
      members.push_back({.rank = rank});
    }
    for (int rank = 0; rank < 3; ++rank) {
      add({.kind = Kind::attempt, .process = rank, .began = 0.1, .ended = 0.2, .path = "job/0"});
      add({.kind = Kind::create, .process = rank, .began = 0.1, .ended = 0.2, .limit = 20});
    }
  }
  Call& add(Call call) {
    call.well = call.text.empty();
    if (call.well) call.members = members;
    return record.calls.emplace_back(std::move(call));
  }
  // Makes the calls of this kind fail on all ranks.
  void fail_all(Kind kind, ErrorCode code, int rank, const std::string& text, double ended) {
    for (auto& call : record.calls) {
      if (call.kind != kind) continue;
      call.well = false;
      call.code = code;
      call.rank = rank;
      call.text = text;
      call.ended = ended;
      call.members.clear();
    }
  }
  void kill(size_t process, double when, int number_in_log) {
    auto& record_of = record.processes[process];
    record_of.died = record_of.ended = when;
    record_of.finished = false;
    record_of.number_in_log = number_in_log;
    for (auto& call : record.calls)
      if (call.process == static_cast<int>(process) && call.ended > when) call.ended = kNever;
  }
  std::vector<int> found() {
    std::vector<int> promises;
    for (const auto& finding : check_life(from, record)) promises.push_back(finding.promise);
    return promises;
  }

  LifeCase from;
  LifeRecord record;
  std::vector<LaunchedRank> members;
};

using Promises = std::vector<int>;
constexpr auto* kKilled = " (host h, pid 1) was killed while the ranks were connecting";

TEST_F(LifeJudge, WhatEndsWellIsRight) { EXPECT_EQ(found(), Promises{}); }

TEST_F(LifeJudge, ACallThatTakesTooLong) {
  record.calls[1].ended = 19;
  EXPECT_EQ(found(), Promises{});
  record.calls[1].ended = 22;
  EXPECT_EQ(found(), Promises{1});
}

TEST_F(LifeJudge, AnAttemptThatEndsWellForOneOnly) {
  record.processes[2].failed_to_connect = 0.15;
  record.calls[0].well = false;
  record.calls[0].code = ErrorCode::io;
  record.calls[0].rank = 2;
  EXPECT_EQ(found(), Promises{2});
  // Stopped ranks may connect in an attempt that the others have left.
  record.processes[1].stops = {{0.11, 0.12}};
  EXPECT_EQ(found(), Promises{2});
  record.processes[2].stops = {{0.11, 0.12}};
  EXPECT_EQ(found(), Promises{});
}

TEST_F(LifeJudge, RanksThatNameOtherMembers) {
  record.calls[2].members.pop_back();
  EXPECT_EQ(found(), Promises{2});
}

TEST_F(LifeJudge, AFailureThatARankHearsLate) {
  kill(1, 0.15, 0);
  fail_all(Kind::attempt, ErrorCode::peer_lost, 1, std::string("rank 1") + kKilled, 0.3);
  record.calls[2].ended = kNever;
  EXPECT_EQ(found(), Promises{});
  record.calls[4].ended = 5;
  EXPECT_EQ(found(), Promises{3});
}

TEST_F(LifeJudge, ADeathIsACauseForOthersAndALifeIsNone) {
  kill(1, 0.15, 0);
  fail_all(Kind::create, ErrorCode::peer_lost, 1, std::string("rank 1") + kKilled, 0.3);
  record.calls[3].ended = kNever;
  EXPECT_EQ(found(), Promises{});
  record.calls[1].rank = 2;
  EXPECT_EQ(found(), Promises{4});
  record.calls[1].rank = 0;
  EXPECT_EQ(found(), Promises{4});
}

TEST_F(LifeJudge, AnErrorThoughNothingHasHappened) {
  fail_all(Kind::create, ErrorCode::timeout, 1, "rank 1 is late", 1);
  EXPECT_EQ(found(), (Promises{4, 4, 4}));
}

// Rank 2 ended the parent. Ranks 0 and 1 make a part without it.
TEST_F(LifeJudge, AnErrorWithoutARankIsOfTheParent) {
  record.processes[2].failed_to_connect = 0.25;
  for (int rank = 0; rank < 2; ++rank)
    add({.kind = Kind::split, .process = rank, .began = 0.3, .ended = 0.4, .limit = 20});
  fail_all(Kind::split, ErrorCode::timeout, -1, "rank 2 is lost", 0.4);
  EXPECT_EQ(found(), Promises{});
  record.calls.back().text = "no rank set the store's key";
  EXPECT_EQ(found(), Promises{4});
  record.calls.back().kind = Kind::create;
  record.calls.back().text = "rank 2 is lost";
  EXPECT_EQ(found(), Promises{4});
}

// Rank 2 gave up the stopped rank 1 and reported that. Rank 1's error names rank 2.
TEST_F(LifeJudge, AStoppedRankReadsThatItWasGivenUp) {
  record.processes[1].stops = {{0.11, 0.35}};
  for (int rank = 0; rank < 3; ++rank)
    add({.kind = Kind::split, .process = rank, .began = 0.3, .ended = 0.4, .limit = 20});
  fail_all(Kind::split, ErrorCode::peer_silent, 1, "split: rank 1 is lost", 0.4);
  auto& own = record.calls[record.calls.size() - 2];
  own.rank = 2;
  EXPECT_EQ(found(), Promises{});
  own.text = "split: rank 2 is lost";
  EXPECT_EQ(found(), Promises{4});
}

TEST_F(LifeJudge, AStoreThatIsThereDoesNotAnswer) {
  record.calls[1].well = false;
  record.calls[1].code = ErrorCode::unavailable;
  EXPECT_EQ(found(), Promises{4});
  record.store_ended = 0.15;
  EXPECT_EQ(found(), Promises{});
}

TEST_F(LifeJudge, OfTwoDeathsTheFirstIsNamed) {
  kill(1, 0.14, 0);
  kill(2, 0.15, 1);
  fail_all(Kind::attempt, ErrorCode::peer_lost, 1, std::string("rank 1") + kKilled, 0.3);
  record.calls[2].ended = record.calls[4].ended = kNever;
  EXPECT_EQ(found(), Promises{});
  record.calls[0].rank = 2;
  EXPECT_EQ(found(), Promises{5});
}

TEST_F(LifeJudge, AShrinkWithARankThatItsMemberGaveUp) {
  members.pop_back();
  kill(2, 0.5, 0);
  for (int rank = 0; rank < 2; ++rank)
    add({.kind = Kind::shrink, .process = rank, .began = 0.6, .ended = 1, .limit = 120})
        .given_up = {2};
  EXPECT_EQ(found(), Promises{});
  record.calls.back().members.push_back({.rank = 2});
  EXPECT_EQ(found(), Promises{6});
}

TEST_F(LifeJudge, AShrinkThatLeavesOutWhoLivesAndCame) {
  const auto all = members;
  members.pop_back();
  for (int rank = 0; rank < 2; ++rank)
    add({.kind = Kind::shrink, .process = rank, .began = 0.6, .ended = 1, .limit = 120})
        .candidates = all;
  auto& late = add({.kind = Kind::shrink, .process = 2, .began = 4, .ended = 4.5, .limit = 120});
  late.candidates = all;
  EXPECT_EQ(found(), Promises{});
  late.began = 0.7;
  EXPECT_EQ(found(), (Promises{6, 6}));
}

TEST_F(LifeJudge, WhoLivesComesToItsEnd) {
  record.processes[1].finished = false;
  EXPECT_EQ(found(), Promises{7});
  record.slow_by = 1;
  EXPECT_EQ(found(), Promises{});
}

TEST_F(LifeJudge, KeysThatStay) {
  record.keys = 30;
  EXPECT_EQ(found(), Promises{});
  record.keys = 300;
  EXPECT_EQ(found(), Promises{8});
}

TEST_F(LifeJudge, WhatTheWorldSays) {
  record.broken_rules.push_back("rank 1 threw: bad_alloc");
  EXPECT_EQ(found(), Promises{0});
}

}  // namespace
}  // namespace tutti::simulation
