#include "tutti/core/agreement/pair_learner.h"

#include <gtest/gtest.h>

namespace tutti {
namespace {

// Returns the answer to a send of rank `from` to rank `to`.
Response answer(const std::string& name, int64_t from, int64_t to, int64_t count = 4) {
  Response response;
  response.name = name;
  response.signature.kind = CollectiveKind::send;
  response.signature.shape = Shape{count};
  response.rows = {from, to};
  return response;
}

TEST(PairLearner, MakesAPairOfEqualUses) {
  PairLearner learner(3);
  for (int use = 0; use < 2; ++use) EXPECT_EQ(learner.observe(answer("x", 0, 1)), -1);
  EXPECT_EQ(learner.observe(answer("x", 0, 1)), 0);
  // The same name between two other ranks is another pair, and so is another name.
  for (int use = 0; use < 2; ++use) {
    EXPECT_EQ(learner.observe(answer("x", 2, 1)), -1);
    EXPECT_EQ(learner.observe(answer("y", 0, 1)), -1);
  }
  EXPECT_EQ(learner.observe(answer("x", 2, 1)), 1);
  EXPECT_EQ(learner.observe(answer("y", 0, 1)), 2);
}

TEST(PairLearner, AChangeBeginsAnew) {
  PairLearner learner(2);
  auto other = answer("x", 0, 1);
  other.signature.dtype = DataType::i32;
  for (const auto& odd : {answer("x", 1, 0), answer("x", 0, 1, 5), other}) {
    EXPECT_EQ(learner.observe(answer("x", 0, 1)), -1);
    EXPECT_EQ(learner.observe(odd), -1);
  }
}

TEST(PairLearner, IsMoreCarefulAfterAPairWasLeft) {
  PairLearner learner(2);
  EXPECT_EQ(learner.observe(answer("x", 0, 1)), -1);
  EXPECT_EQ(learner.observe(answer("x", 0, 1)), 0);
  for (int use = 0; use < 3; ++use) EXPECT_EQ(learner.observe(answer("x", 0, 1)), -1);
  EXPECT_EQ(learner.observe(answer("x", 0, 1)), 1);
  for (int use = 0; use < 7; ++use) EXPECT_EQ(learner.observe(answer("x", 0, 1)), -1);
  EXPECT_EQ(learner.observe(answer("x", 0, 1)), 2);
}

TEST(PairLearner, MemoryOfADeviceIsAskedFor) {
  PairLearner learner(1);
  auto response = answer("x", 0, 1);
  response.signature.placement = DeviceKind::cuda;
  EXPECT_EQ(learner.observe(response), -1);
  EXPECT_EQ(learner.observe(answer("x", 0, 1)), 0);
}

// The next receive may be matched by another sender.
TEST(PairLearner, AReceiveFromAnyRankMakesNoPair) {
  PairLearner learner(1);
  auto response = answer("x", 0, 1);
  response.signature.root = kFromAnyRank;
  for (int use = 0; use < 3; ++use) EXPECT_EQ(learner.observe(response), -1);
  EXPECT_EQ(learner.observe(answer("x", 0, 1)), 0);
}

TEST(PairLearner, NamesThatNeverComeAgainAreForgotten) {
  PairLearner learner(2);
  learner.observe(answer("pair", 0, 1));
  EXPECT_EQ(learner.observe(answer("pair", 0, 1)), 0);
  constexpr size_t kMost = PairLearner::kMostNames;
  for (size_t i = 0; i < 2 * kMost + 10; ++i) {
    learner.observe(answer(std::to_string(i), 0, 1));
    ASSERT_LE(learner.kept_names(), kMost);
  }
  EXPECT_GT(learner.kept_names(), 0u);
  // The learner still knows that "pair" was a pair before.
  for (int use = 0; use < 3; ++use) EXPECT_EQ(learner.observe(answer("pair", 0, 1)), -1);
  EXPECT_EQ(learner.observe(answer("pair", 0, 1)), 1);
}

TEST(PairTags, OfAllUsesOfAllPairsDiffer) {
  EXPECT_NE(pair_tag(0, 0), pair_tag(1, 0));
  EXPECT_LT(pair_tag(0, 5), pair_tag(0, 6));
  EXPECT_LT(last_pair_tag(0), pair_tag(1, 0));
  // The tags lie beyond those of plans and before those of the backends' own messages.
  EXPECT_GT(pair_tag(0, 0), uint64_t{1} << 61);
  EXPECT_LT(last_pair_tag(kMostPairs - 1), uint64_t{1} << 63);
}

}  // namespace
}  // namespace tutti
