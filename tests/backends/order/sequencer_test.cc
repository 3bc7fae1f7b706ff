// The sequencer: ranks start operations in any order, and all ranks get the answers in one order.
// An operation that one rank gives up runs nowhere.

#include "tutti/backends/order/sequencer.h"

#include <gmock/gmock.h>

#include "tests/backends/support/world.h"

namespace tutti::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int kAll = -1;

class SequencerTest : public testing::Test {
 protected:
  SequencerTest() {
    for (const auto& end : ends_) sequencers_.push_back(std::make_unique<Sequencer>(*end));
  }
  Sequencer& of(int rank) { return *sequencers_[static_cast<size_t>(rank)]; }
  // Drives all ranks until no message is on its way.
  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < ends_.size(); ++rank) {
        moved |= ends_[rank]->progress();
        moved |= sequencers_[rank]->progress();
      }
    }
  }
  // Returns the tags and answers that this rank has received since the last call.
  std::vector<std::string> answers(int rank) {
    run();
    std::vector<std::string> all;
    while (const auto call = of(rank).take()) {
      constexpr const char* kAnswers[] = {"run", "veto", "drop"};
      all.push_back(fmt::format("{} {}", call->tag, kAnswers[static_cast<int>(call->answer)]));
      if (call->answer != Sequencer::Answer::drop) numbers_.push_back(call->number);
    }
    return all;
  }

  // The transports are destroyed before the sequencers, because a transport may use their buffers
  // until then.
  std::vector<std::unique_ptr<Sequencer>> sequencers_;
  std::vector<std::unique_ptr<Transport>> ends_ = make_transports(find_backend("memory"), 3);
  std::vector<uint32_t> numbers_;  // of the calls that were taken and not dropped
};

TEST_F(SequencerTest, AnswersAllRanksInOneOrder) {
  for (const auto& [rank, tags] :
       {std::pair{0, std::array{4, 5, 6}}, {1, {6, 4, 5}}, {2, {5, 6, 4}}})
    for (const int tag : tags) {
      of(rank).ready(static_cast<uint64_t>(tag), rank == 2 && tag == 6, kAll);
      run();
    }
  const auto first = answers(0);
  EXPECT_THAT(first, testing::UnorderedElementsAre("4 run", "5 run", "6 veto"));
  for (const int rank : {1, 2}) EXPECT_EQ(answers(rank), first);
  EXPECT_THAT(numbers_, ElementsAre(0, 1, 2, 0, 1, 2, 0, 1, 2));
}

TEST_F(SequencerTest, AnswersOnlyTheTwoThatTakePart) {
  of(2).ready(4, 0, 1);
  EXPECT_THAT(answers(2), IsEmpty());
  of(1).ready(4, 0, 2);
  for (const int rank : {1, 2}) EXPECT_THAT(answers(rank), ElementsAre("4 run"));
  EXPECT_THAT(answers(0), IsEmpty());
}

// Other ranks may be ready for the operation, and may give it up too, after they have received that
// it is dropped.
TEST_F(SequencerTest, WhatOneRankGivesUpIsDroppedOnceAndForAll) {
  for (const auto& [peer_of_1, peer_of_2] : {std::pair{kAll, kAll}, {2, 1}}) {
    const uint64_t tag = peer_of_1 == kAll ? 4 : 5;
    of(1).ready(tag, 0, peer_of_1);
    of(1).cancel(tag);
    for (const int rank : {0, 1, 2})
      EXPECT_THAT(answers(rank), ElementsAre(fmt::format("{} drop", tag)));
    if (peer_of_1 == kAll) of(0).ready(tag, 0, kAll);
    of(2).ready(tag, 0, peer_of_2);
    of(2).cancel(tag);
    EXPECT_THAT(answers(2), ElementsAre(fmt::format("{} drop", tag)));
    for (const int rank : {0, 1}) EXPECT_THAT(answers(rank), IsEmpty()) << "they know";
  }
  for (const int rank : {2, 0, 1}) of(rank).ready(6, 0, kAll);
  for (const int rank : {0, 1, 2}) EXPECT_THAT(answers(rank), ElementsAre("6 run"));
  EXPECT_THAT(numbers_, ElementsAre(0, 0, 0)) << "what was dropped has no number";
}

TEST_F(SequencerTest, WhatWasCalledRunsThoughARankGivesItUp) {
  for (const int rank : {2, 1, 0}) of(rank).ready(4, 0, kAll);
  of(2).cancel(4);
  for (const int rank : {0, 1, 2}) EXPECT_EQ(answers(rank).front(), "4 run");
}

}  // namespace
}  // namespace tutti::test
