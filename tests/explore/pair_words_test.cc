// Two ranks meet for a blocking send. Each publishes the offset of its memory, or that it has none,
// and sleeps until the other one has published too.
#include "tutti/backends/shared/pair_words.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <vector>

#include "tests/explore/explored.h"
#include "tests/explore/explorer.h"

namespace tutti::explore {
namespace {

struct TwoThatMeet {
  using Words = PairWordsOf<Explored>;
  static constexpr uint64_t kPlace = 64;  // offset of rank 0's memory; rank 1 adds 1

  std::array<Words::Word, 2> words[2];
  std::array<SleepLineOf<Explored>, 2> sleepers;
  std::array<Bell, 2> bells;
  std::array<std::byte, 2> memory{};

  void meet(int rank, bool has_memory, bool peer_has_memory) {
    const auto own = static_cast<size_t>(rank), other = 1 - own;
    const int peer = 1 - rank;
    Words mine(rank, {words[0].data(), words[1].data()}, {&sleepers[0], &sleepers[1]});
    require(!mine.has_told(peer), "a word speaks before its rank does");
    std::optional<uint64_t> place;
    if (has_memory) {
      Explored::writes(&memory[own]);
      place = kPlace + own;
    }
    mine.tell(peer, place, [&] { bells[other].ring(); });
    require(mine.has_told(peer), "a rank does not know that it has told");
    while (mine.meeting(peer) == Words::Meeting::awaited) {
      bells[own].silence();
      sleepers[own].put_up();
      if (mine.is_silent(peer)) bells[own].wait(std::chrono::microseconds::max());
      sleepers[own].take_down();
    }
    const bool met = mine.meeting(peer) == Words::Meeting::met;
    require(met == (has_memory && peer_has_memory), "two meet of whom one has no memory");
    if (!met) return;
    require(mine.place_of(peer) == kPlace + other, "a rank looks for its peer's memory elsewhere");
    Explored::reads(&memory[other]);
  }
};

void expect_meeting(bool first_has_memory, bool second_has_memory) {
  const auto outcome = explore([=](Model& model) {
    auto two = std::make_shared<TwoThatMeet>();
    model.thread("rank 0", [=] { two->meet(0, first_has_memory, second_has_memory); });
    model.thread("rank 1", [=] { two->meet(1, second_has_memory, first_has_memory); });
  });
  EXPECT_EQ(outcome.failure, "") << outcome.trace;
  EXPECT_TRUE(outcome.complete);
  testing::Test::RecordProperty("runs", static_cast<int>(outcome.runs));
}

TEST(PairWordsModel, BothMeet) { expect_meeting(true, true); }
TEST(PairWordsModel, OneIsRefused) { expect_meeting(true, false); }
TEST(PairWordsModel, BothAreRefused) { expect_meeting(false, false); }

}  // namespace
}  // namespace tutti::explore
