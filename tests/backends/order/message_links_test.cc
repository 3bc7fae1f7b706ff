// Small messages between ranks, in order, over a transport.

#include "tutti/backends/order/message_links.h"

#include <gmock/gmock.h>

#include "tests/backends/support/world.h"

namespace tutti::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

struct Word {
  int value = 0;
  int copy = 0;
};

constexpr uint64_t kTag = uint64_t{0xB7} << 56;

// Three ranks, each linked with the two others, and the messages that each received.
class MessageLinksTest : public testing::Test {
 protected:
  MessageLinksTest() {
    for (int rank = 0; rank < 3; ++rank) {
      links_.push_back(std::make_unique<MessageLinks<Word>>(*ends_[index(rank)], kTag));
      for (const int peer : others(rank, 3)) links_.back()->open(peer);
    }
  }
  static size_t index(int rank) { return static_cast<size_t>(rank); }
  MessageLinks<Word>& of(int rank) { return *links_[index(rank)]; }
  std::vector<int>& heard(int rank, int from) { return heard_[index(rank)][index(from)]; }
  void send(int from, int to, int value) { of(from).send(to, {value, value}); }
  void progress(int rank) {
    if (!ends_[index(rank)]) return;
    ends_[index(rank)]->progress();
    of(rank).progress([&](int peer, const Word& word) {
      EXPECT_EQ(word.value, word.copy);
      heard(rank, peer).push_back(word.value);
      if (answers_) send(rank, peer, -word.value);
    });
  }
  // Drives these ranks until the condition holds.
  void until(const std::vector<int>& ranks, const std::function<bool()>& condition) {
    const auto deadline = Deadline::after(20);
    while (!condition() && !deadline.passed())
      for (const int rank : ranks) progress(rank);
    ASSERT_TRUE(condition());
  }
  void lose(int rank) {
    ends_[index(rank)].reset();
    links_[index(rank)].reset();
  }

  // The transports are destroyed before the links, because a transport may use the links' buffers
  // until then.
  std::vector<std::unique_ptr<MessageLinks<Word>>> links_;
  std::vector<std::unique_ptr<Transport>> ends_ = make_transports(find_backend("memory"), 3);
  std::vector<int> heard_[3][3];
  bool answers_ = false;
};

TEST_F(MessageLinksTest, EachPeerIsHeardInOrder) {
  constexpr int kMany = 3000;
  std::vector<int> expected;
  for (int i = 0; i < kMany; ++i) {
    send(1, 0, i);
    send(2, 0, i);
    if (i % 7 == 0) progress(0);
    expected.push_back(i);
  }
  until({0, 1, 2},
        [&] { return heard(0, 1).size() == index(kMany) && heard(0, 2).size() == index(kMany); });
  EXPECT_EQ(heard(0, 1), expected);
  EXPECT_EQ(heard(0, 2), expected);
  EXPECT_THAT(heard(1, 2), IsEmpty());
}

TEST_F(MessageLinksTest, AMessageMayBeAnsweredWhileItIsHeard) {
  send(1, 0, 3);
  send(1, 0, 4);
  send(2, 0, 5);
  for (const auto deadline = Deadline::after(20); !deadline.passed();) {
    answers_ = true;
    progress(0);
    answers_ = false;
    progress(1);
    progress(2);
    if (heard(1, 0).size() == 2 && heard(2, 0).size() == 1) break;
  }
  EXPECT_THAT(heard(1, 0), ElementsAre(-3, -4));
  EXPECT_THAT(heard(2, 0), ElementsAre(-5));
}

TEST_F(MessageLinksTest, APeerThatIsGoneIsKnownAndTheOthersGoOn) {
  send(2, 0, 1);
  until({0, 1, 2}, [&] { return heard(0, 2).size() == 1; });
  EXPECT_FALSE(of(0).has_lost_peer());
  lose(2);
  until({0, 1}, [&] { return of(0).is_gone(2) && of(1).is_gone(2); });
  EXPECT_TRUE(of(0).has_lost_peer());
  EXPECT_FALSE(of(0).is_gone(1));
  send(0, 2, 7);  // rank 2 is gone
  send(0, 1, 8);
  send(1, 0, 9);
  until({0, 1}, [&] { return heard(1, 0).size() == 1 && heard(0, 1).size() == 1; });
  EXPECT_THAT(heard(1, 0), ElementsAre(8));
  EXPECT_THAT(heard(0, 1), ElementsAre(9));
}

// Messages to one peer arrive even if another peer does not receive.
TEST_F(MessageLinksTest, APeerThatStandsStillHoldsNoOtherUp) {
  constexpr int kMany = 3000;
  for (int i = 0; i < kMany; ++i) {
    send(0, 2, i);  // rank 2 makes no progress yet
    send(0, 1, i);
  }
  until({0, 1}, [&] { return heard(1, 0).size() == index(kMany); });
  EXPECT_THAT(heard(2, 0), IsEmpty());
  until({0, 2}, [&] { return heard(2, 0).size() == index(kMany); });
}

TEST_F(MessageLinksTest, TwoTagsDoNotMeet) {
  MessageLinks<Word> other_zero(*ends_[0], kTag + 1), other_one(*ends_[1], kTag + 1);
  other_zero.open(1);
  other_one.open(0);
  other_one.send(0, {11, 11});
  send(1, 0, 12);
  std::vector<int> others_heard;
  until({0, 1}, [&] {
    other_zero.progress([&](int, const Word& word) { others_heard.push_back(word.value); });
    return !others_heard.empty() && !heard(0, 1).empty();
  });
  EXPECT_THAT(others_heard, ElementsAre(11));
  EXPECT_THAT(heard(0, 1), ElementsAre(12));
  ends_.clear();
}

}  // namespace
}  // namespace tutti::test
