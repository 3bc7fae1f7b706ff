// Tests of the small state machines of a node, each by itself.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <set>

#include "tests/backends/support/world.h"
#include "tutti/core/node/blocking_calls.h"
#include "tutti/core/node/gathering.h"
#include "tutti/core/node/inquiry.h"
#include "tutti/core/node/pair_calls.h"
#include "tutti/core/node/phase.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;

// The edges that the header draws are exactly those of the code.
TEST(PhaseDrawing, IsWhatTheCodeAllows) {
  std::ifstream header(TUTTI_SOURCE_DIR "/core/node/phase.h");
  ASSERT_TRUE(header.good());
  const std::regex edge(R"(^///   (\w+) +-> (\w+)  .*)");
  std::set<std::string> drawn, allowed;
  for (std::string line; std::getline(header, line);)
    if (std::smatch match; std::regex_match(line, match, edge))
      drawn.insert(match.str(1) + " -> " + match.str(2));
  for (const auto& [from, to] : phase_edges())
    allowed.insert(std::string(to_string(from)) + " -> " + std::string(to_string(to)));
  EXPECT_EQ(drawn, allowed);
  EXPECT_EQ(allowed.size(), phase_edges().size());
}

TEST(PhaseDrawing, NothingFollowsOver) {
  for (int to = 0; to < kPhaseCount; ++to)
    EXPECT_FALSE(may_follow(Phase::over, static_cast<Phase>(to)));
  EXPECT_FALSE(may_follow(Phase::broken, Phase::running));
  EXPECT_TRUE(may_follow(Phase::closing, Phase::broken));
}

Departure departure_of(int rank, uint64_t blocking_done = 0) {
  Departure departure{rank, {}, Error(ErrorCode::peer_left, "left").with_rank(rank), {}};
  departure.farewell.blocking_done = blocking_done;
  return departure;
}

TEST(Peers, KnowWhoLeftAndWhoWasLost) {
  using enum Peers::State;
  Peers peers(4);
  EXPECT_EQ(peers.first(), nullptr);
  EXPECT_TRUE(peers.on_farewell(departure_of(2)));
  EXPECT_FALSE(peers.on_farewell(departure_of(2))) << "it has said so before";
  EXPECT_EQ(peers.state(2), leaving);
  EXPECT_FALSE(peers.is_gone(2)) << "its link is still there";
  EXPECT_EQ(peers.on_end(2, PeerEvent::Kind::lost), left) << "it had said farewell";
  EXPECT_EQ(peers.on_end(2, PeerEvent::Kind::lost), here) << "that was known";
  EXPECT_EQ(peers.on_end(1, PeerEvent::Kind::left), left);
  EXPECT_EQ(peers.on_end(3, PeerEvent::Kind::lost), lost);
  EXPECT_TRUE(peers.is_gone(3));
  EXPECT_TRUE(peers.on_farewell(departure_of(1)));
  EXPECT_EQ(peers.state(1), left) << "a farewell that is read late brings no rank back";
  EXPECT_EQ(peers.first()->rank, 2);
  EXPECT_EQ(peers.departure_of(3), nullptr);
}

TEST(BlockingCalls, EndWithTheRankThatGaveThemUp) {
  Peers peers(3);
  BlockingCalls calls;
  EXPECT_EQ(calls.begin_all(), 1u);
  calls.end(nullptr);
  EXPECT_EQ(calls.begin_all(), 2u);
  calls.waits("x", {});
  EXPECT_EQ(calls.over(), 1u) << "the one that waits is not over";
  peers.on_farewell(departure_of(2, 2));
  EXPECT_EQ(calls.departure_that_ends(peers), nullptr) << "rank 2 has finished this call";
  peers.on_farewell(departure_of(1, 1));
  ASSERT_NE(calls.departure_that_ends(peers), nullptr);
  EXPECT_EQ(calls.departure_that_ends(peers)->rank, 1);
  const Error lost(ErrorCode::peer_left, "rank 1 left");
  calls.end(&lost);
  EXPECT_EQ(calls.finished(), 1u) << "this rank gave its second call up";
  EXPECT_FALSE(calls.is_waiting());
}

TEST(BlockingCalls, OfTwoRanksNeedTheOtherAlone) {
  Peers peers(3);
  BlockingCalls calls;
  calls.begin_pairs(1);
  calls.add_peer(2);
  calls.waits("x", {});
  peers.on_farewell(departure_of(1));
  EXPECT_EQ(calls.departure_that_ends(peers), nullptr);
  EXPECT_TRUE(calls.needs(2));
  EXPECT_FALSE(calls.needs(1));
  EXPECT_EQ(calls.pairs(), 1u);
  EXPECT_EQ(calls.over(), 0u);
}

TEST(BlockingCalls, OneThatAllRanksRefuseIsFinished) {
  BlockingCalls calls;
  calls.begin_all();
  const Error refused(ErrorCode::mismatch, "the ranks disagree");
  calls.end(&refused);
  EXPECT_EQ(calls.finished(), 1u) << "no rank waits for this one's part";
  calls.begin_pairs(2);
  const Error lost(ErrorCode::peer_left, "rank 1 left");
  calls.end(&lost);
  EXPECT_EQ(calls.finished(), 1u) << "a send between two is no call of all ranks";
  EXPECT_EQ(calls.pairs(), 2u);
  calls.begin_all();
  calls.end(&lost);
  calls.begin_all();
  calls.end(nullptr);
  EXPECT_EQ(calls.finished(), 1u) << "the first that was given up counts";
  EXPECT_EQ(calls.over(), 3u);
}

/// An operation that is done after `looks` calls of advance().
class LookedAt final : public Operation {
 public:
  explicit LookedAt(int looks) : looks_(looks) {}
  OperationState advance() override {
    if (is_cancelled) return OperationState::failed;
    return looks_-- > 0 ? OperationState::pending : OperationState::done;
  }
  void release() override {}
  void cancel() override { is_cancelled = true; }
  bool is_cancelled = false;

 private:
  int looks_;
};

constexpr int kNever = 1000;

TEST(PairCalls, ThePartOfARankThatStayedGoesOnWhereTheOtherHasLeft) {
  Peers peers(3);
  LookedAt of_leaver(kNever), of_other(5);
  PairCalls calls(peers);
  calls.add("from 1", 1, OperationPtr(&of_leaver));
  calls.add("to 2", 2, OperationPtr(&of_other));
  EXPECT_EQ(calls.advance(), OperationState::pending);
  peers.on_farewell(departure_of(1));
  EXPECT_EQ(calls.advance(), OperationState::pending) << "rank 2 waits for its part";
  EXPECT_TRUE(of_leaver.is_cancelled);
  EXPECT_FALSE(of_other.is_cancelled);
  auto state = OperationState::pending;
  for (int looks = 0; state == OperationState::pending && looks < 10; ++looks)
    state = calls.advance();
  EXPECT_EQ(state, OperationState::failed);
  ASSERT_NE(calls.failure(), nullptr);
  EXPECT_EQ(calls.failure()->code(), ErrorCode::peer_left);
  EXPECT_EQ(calls.failure()->tensor(), "from 1");
  EXPECT_STREQ(calls.failure()->what(), "\"from 1\": left");
}

TEST(PairCalls, WhatARankSentBeforeItLeftIsStillReceived) {
  Peers peers(3);
  LookedAt received(1);
  PairCalls calls(peers);
  calls.add("x", 1, OperationPtr(&received));
  peers.on_farewell(departure_of(1));
  EXPECT_EQ(calls.advance(), OperationState::done);
  EXPECT_EQ(calls.failure(), nullptr);
}

TEST(Gathering, IsWholeWhenEachRankHasSentItsLastPartOrIsGone) {
  Gathering gathering(0, 3);
  gathering.set_own("a");
  const std::string part = "bc";
  gathering.on_part(1, std::as_bytes(std::span(part)));
  gathering.on_part(1, std::as_bytes(std::span(part)));
  gathering.on_end(2);
  gathering.on_end(2);
  EXPECT_FALSE(gathering.is_whole());
  gathering.on_part(1, {});
  EXPECT_TRUE(gathering.is_whole());
  EXPECT_THAT(gathering.timelines(), testing::ElementsAre("a", "bcbc", ""));
}

/// Rank 0 of four inquires into the end of rank 3 since `kBegin`.
class InquiryTest : public testing::Test {
 protected:
  static constexpr Clock::time_point kBegin{std::chrono::hours(1)};
  InquiryTest() { inquiry_.open(3, "connection reset", kBegin); }
  void hear(const std::vector<Death>& deaths) {
    inquiry_.on_deaths({.deaths = deaths, .is_all = false}, context_, peers_);
  }
  auto look(milliseconds after, ProcessState process = ProcessState::runs) {
    return inquiry_.look(kBegin + after, process);
  }
  const Context context_ = test::thread_context(0, 4, nullptr);
  Peers peers_{4};
  Inquiry inquiry_;
};

TEST_F(InquiryTest, WaitsForTheRecordAndNoLongerThanItsTime) {
  EXPECT_FALSE(look(milliseconds(0)));
  EXPECT_EQ(inquiry_.next_look(), kBegin + milliseconds(5));
  EXPECT_FALSE(look(milliseconds(5)));
  EXPECT_EQ(inquiry_.next_look(), kBegin + milliseconds(10));
  const auto verdict = look(milliseconds(300));
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->rank, 3);
  EXPECT_EQ(verdict->how, "was lost (connection reset)");
  EXPECT_EQ(inquiry_.next_look(), Clock::time_point::max()) << "it is closed";
}

TEST_F(InquiryTest, BlamesTheFirstThatFailed) {
  hear({{.who = {0, 0}, .code = 1},    // this rank itself
        {.who = {2, 0}, .code = 0},    // ended well
        {.who = {1, 1}, .signal = 9},  // another incarnation
        {.who = {1, 0}, .signal = 11},
        {.who = {3, 0}, .signal = 9}});
  const auto verdict = look(milliseconds(0));
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->rank, 1);
  EXPECT_THAT(verdict->how, testing::HasSubstr("signal 11"));
}

TEST_F(InquiryTest, PassesOverARankThatHasSaidGoodbye) {
  peers_.on_farewell(departure_of(1));
  peers_.on_end(1, PeerEvent::Kind::left);
  hear({{.who = {1, 0}, .code = 1}});
  EXPECT_FALSE(look(milliseconds(0)));
}

TEST_F(InquiryTest, ThePeerIsTheCauseHoweverItEnded) {
  hear({{.who = {3, 0}, .code = 0}});
  const auto verdict = look(milliseconds(0));
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->rank, 3);
  EXPECT_EQ(verdict->how, "exited with code 0 without closing its Communicator");
}

TEST_F(InquiryTest, SaysThatItsProcessEndedWhereTheSystemShowsIt) {
  EXPECT_FALSE(look(milliseconds(0), ProcessState::ended));
  const auto verdict = look(milliseconds(300));
  ASSERT_TRUE(verdict);
  EXPECT_THAT(verdict->how, testing::HasSubstr("its process exited or was killed"));
}

}  // namespace
}  // namespace tutti
