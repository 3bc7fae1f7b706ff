// The two ends of prepared pairs by themselves: their states and the messages that they send.

#include "tutti/core/scheduling/prepared_pairs.h"

#include <gtest/gtest.h>

#include "tutti/core/agreement/checks.h"

namespace tutti {
namespace {

using enum PreparedPair::State;

Signature signature_of(CollectiveKind kind, int peer) {
  Signature signature;
  signature.kind = kind;
  signature.root = peer;
  signature.shape = Shape{4};
  return signature;
}

class PreparedPairsTest : public testing::Test {
 protected:
  static constexpr int kPeer = 2;
  static constexpr int64_t kId = 7;
  PreparedPair& make(CollectiveKind kind = CollectiveKind::recv, const std::string& name = "x",
                     int64_t id = kId) {
    pairs_.hear_of(id);
    return pairs_.make(pair_entry_key(name, kPeer), id, signature_of(kind, kPeer));
  }
  PreparedPairs pairs_;
};

TEST_F(PreparedPairsTest, UseFollowsUse) {
  auto& pair = make();
  for (uint64_t use = 0; use < 3; ++use) {
    EXPECT_EQ(pair.state(), ready);
    EXPECT_EQ(pair.launch(), use);
    EXPECT_EQ(pair.state(), running);
    EXPECT_EQ(pair.finished(), use);
    pair.finish();
    EXPECT_EQ(pair.finished(), use + 1);
  }
  EXPECT_EQ(pairs_.find(pair_entry_key("x", kPeer)), &pair);
  EXPECT_EQ(pairs_.find(pair_entry_key("x", kPeer + 1)), nullptr);
}

TEST_F(PreparedPairsTest, TakesWhatLooksAlikeOnly) {
  const auto& pair = make();
  auto signature = signature_of(CollectiveKind::recv, kPeer);
  EXPECT_TRUE(pair.fits(signature));
  signature.dtype = DataType::f64;
  EXPECT_FALSE(pair.fits(signature));
  signature = signature_of(CollectiveKind::send, kPeer);
  EXPECT_FALSE(pair.fits(signature));
  signature = signature_of(CollectiveKind::recv, kPeer);
  signature.shape = Shape{5};
  EXPECT_FALSE(pair.fits(signature));
}

TEST_F(PreparedPairsTest, IsLeftOnceAndFromTheNextUseOn) {
  auto& pair = make();
  pair.launch();
  EXPECT_TRUE(pair.leave());
  EXPECT_EQ(pair.state(), running) << "the use that runs goes on";
  EXPECT_FALSE(pair.is_left_from(0));
  EXPECT_TRUE(pair.is_left_from(1));
  EXPECT_FALSE(pair.leave());
  pair.finish();
  EXPECT_EQ(pair.state(), left);
}

TEST_F(PreparedPairsTest, APeerThatLeavesEndsTheUseThatItRefuses) {
  auto& pair = make();
  pair.launch();
  pair.finish();
  pair.launch();  // use 1
  EXPECT_EQ(pairs_.on_left(kPeer, kId, 2), nullptr) << "from the use behind";
  EXPECT_TRUE(pair.is_left_by_peer());
  EXPECT_EQ(pairs_.on_left(kPeer, kId, 1), &pair);
  pair.finish();
  EXPECT_EQ(pair.state(), left);
}

TEST_F(PreparedPairsTest, WordThatOvertakesTheAnswerIsKept) {
  EXPECT_EQ(pairs_.on_left(kPeer, kId, 0), nullptr);
  const auto& pair = make();
  EXPECT_EQ(pair.state(), left);
  EXPECT_TRUE(pair.is_left_by_peer());
  // A pair that this rank has erased leaves nothing behind.
  pairs_.erase(pair);
  EXPECT_EQ(pairs_.on_left(kPeer, kId, 3), nullptr);
  EXPECT_EQ(make(CollectiveKind::send, "x", kId + 1).state(), ready);
}

TEST_F(PreparedPairsTest, AUseIsGivenUpWhereItIsNotLaunched) {
  auto& pair = make();
  EXPECT_TRUE(pairs_.on_recall(kPeer, kId, 0));
  EXPECT_EQ(pair.state(), left);
  EXPECT_FALSE(pairs_.on_recall(kPeer, kId, 0)) << "it was told";
}

TEST_F(PreparedPairsTest, AUseThatWasLaunchedIsNotGivenUp) {
  auto& pair = make();
  pair.launch();
  EXPECT_FALSE(pairs_.on_recall(kPeer, kId, 0));
  pair.finish();
  EXPECT_FALSE(pairs_.on_recall(kPeer, kId, 0));
  EXPECT_EQ(pair.state(), ready);
}

TEST_F(PreparedPairsTest, AUseIsGivenUpBeforeTheAnswerComes) {
  EXPECT_TRUE(pairs_.on_recall(kPeer, kId, 0));
  EXPECT_EQ(make().state(), left);
}

TEST_F(PreparedPairsTest, AUseIsAskedBackOnce) {
  auto& pair = make();
  pair.launch();
  EXPECT_TRUE(pair.recall());
  EXPECT_FALSE(pair.recall());
  pair.finish();
  pair.launch();
  EXPECT_TRUE(pair.recall()) << "the next use";
}

TEST_F(PreparedPairsTest, OthersDoNotSpeakForThePeer) {
  make();
  EXPECT_THROW(pairs_.on_left(kPeer + 1, kId, 0), DamagedMessage);
  EXPECT_THROW(pairs_.on_recall(kPeer + 1, kId, 0), DamagedMessage);
  EXPECT_THROW(make(), DamagedMessage) << "the two are one already";
}

TEST_F(PreparedPairsTest, ThoseThatBringANameReceiveUnderIt) {
  make(CollectiveKind::recv, "y", 1);
  make(CollectiveKind::recv, "x", 3);
  make(CollectiveKind::send, "z", 2);
  EXPECT_EQ(pairs_.that_bring("x").size(), 1u);
  EXPECT_EQ(pairs_.that_bring("x")[0]->id(), 3);
  EXPECT_TRUE(pairs_.that_bring("z").empty());
  const auto all = pairs_.in_order();
  ASSERT_EQ(all.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(all[i]->id(), static_cast<int64_t>(i) + 1);
}

}  // namespace
}  // namespace tutti
