#include "tutti/backends/handshake/admission.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tutti {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::SizeIs;

struct Knocker final : Stranger {
  explicit Knocker(std::string called) : called(std::move(called)) {}
  const std::string& name() const override { return called; }
  bool has_spoken() override { return ++times_asked, speaks; }
  void dismiss() override { dismissed = true; }
  const std::string called;
  bool speaks = false, dismissed = false;
  int times_asked = 0;
};

constexpr auto kMost = Admission::kMostStrangers;
constexpr auto kStay = Admission::kLeastStay;
const Clock::time_point kStart = Clock::time_point() + std::chrono::hours(1);

class AdmissionTest : public testing::Test {
 protected:
  std::shared_ptr<Knocker> enter(Clock::time_point now) {
    auto knocker = std::make_shared<Knocker>("knocker " + std::to_string(all_.size()));
    door_->enter(
        [&](uint64_t place) {
          places_.push_back(place);
          return knocker;
        },
        now);
    all_.push_back(knocker);
    return knocker;
  }
  void fill(Clock::time_point now) {
    for (size_t i = 0; i < kMost; ++i) enter(now);
  }
  int dismissed() const {
    return static_cast<int>(
        std::count_if(all_.begin(), all_.end(), [](const auto& one) { return one->dismissed; }));
  }

  std::vector<std::string> log_;
  std::unique_ptr<Admission> door_ = std::make_unique<Admission>(
      "the door", [this](LogLevel, std::string_view line) { log_.emplace_back(line); });
  std::vector<std::shared_ptr<Knocker>> all_;
  std::vector<uint64_t> places_;
};

TEST_F(AdmissionTest, AFullDoorOpensWhenItsOldestStrangerHasHadItsTime) {
  EXPECT_EQ(door_->next_opening(kStart), kStart);
  fill(kStart);
  EXPECT_EQ(dismissed(), 0);
  EXPECT_EQ(door_->next_opening(kStart + milliseconds(10)), kStart + kStay);
  EXPECT_EQ(door_->next_opening(kStart + seconds(1)), kStart + seconds(1));
  door_->leave(places_[7]);
  EXPECT_EQ(door_->next_opening(kStart), kStart);
}

TEST_F(AdmissionTest, TheOldestSilentOneGivesWay) {
  fill(kStart);
  all_[0]->speaks = all_[1]->speaks = true;
  enter(kStart + kStay);
  EXPECT_TRUE(all_[2]->dismissed);
  enter(kStart + kStay);
  EXPECT_TRUE(all_[3]->dismissed);
  EXPECT_EQ(dismissed(), 2);
  EXPECT_EQ(all_[0]->times_asked, 1);  // a newcomer that has spoken is not asked again
}

TEST_F(AdmissionTest, WhereAllHaveSpokenTheOldestGivesWay) {
  fill(kStart);
  for (const auto& one : all_) one->speaks = true;
  enter(kStart + kStay);
  EXPECT_TRUE(all_[0]->dismissed);
  EXPECT_EQ(dismissed(), 1);
}

// Silent newcomers are spared for a moment, because a genuine one among them is about to speak.
TEST_F(AdmissionTest, ANewcomerIsNotDismissedAtOnce) {
  for (size_t i = 0; i < kMost / 2; ++i) enter(kStart)->speaks = true;
  for (size_t i = 0; i < kMost / 2; ++i) enter(kStart + kStay);
  enter(kStart + kStay);
  EXPECT_TRUE(all_[0]->dismissed);
  EXPECT_EQ(dismissed(), 1);
}

TEST_F(AdmissionTest, AFloodIsTakenAtABoundedRate) {
  auto now = kStart;
  for (int i = 0; i < 10'000; ++i) {
    now = door_->next_opening(now);
    enter(now);
  }
  EXPECT_GE(now - kStart, kStay * (10'000 / static_cast<int>(kMost) - 1));
  EXPECT_EQ(dismissed(), 10'000 - static_cast<int>(kMost));
}

TEST_F(AdmissionTest, RoomIsMadeWhenDescriptorsRunOut) {
  EXPECT_FALSE(door_->make_room(kStart));
  enter(kStart);
  EXPECT_FALSE(door_->make_room(kStart));
  EXPECT_TRUE(door_->make_room(kStart + kStay));
  EXPECT_EQ(dismissed(), 1);
}

TEST_F(AdmissionTest, TheLogCountsWhoKnockedAndIsNotFlooded) {
  door_->turned_away(Admission::Reason::unproved, "10.0.0.3 is no Tutti process", kStart);
  ASSERT_THAT(log_, SizeIs(1));
  EXPECT_EQ(log_[0], "the door turned a connection away: 10.0.0.3 is no Tutti process");
  fill(kStart);
  for (int i = 0; i < 300; ++i) enter(kStart + seconds(1));
  door_->turned_away(Admission::Reason::other_user, "process 7 of user 9", kStart + seconds(5));
  EXPECT_THAT(log_, SizeIs(1));
  door_->turned_away(Admission::Reason::unproved, "the last one", kStart + seconds(11));
  ASSERT_THAT(log_, SizeIs(2));
  EXPECT_EQ(log_[1],
            "the door turned 302 connections away in 10.0 s (300 said nothing, 1 did not prove "
            "themselves, 1 of other users); the last: the last one");
  door_->turned_away(Admission::Reason::unproved, "told at the end", kStart + seconds(12));
  EXPECT_THAT(log_, SizeIs(2));
  door_.reset();
  ASSERT_THAT(log_, SizeIs(3));
  EXPECT_THAT(log_[2], HasSubstr("told at the end"));
}

}  // namespace
}  // namespace tutti
