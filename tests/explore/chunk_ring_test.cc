// Two ranks put chunks through two slots each, and sleep when they cannot move anything.
#include "tutti/backends/shared/chunk_ring.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <vector>

#include "tests/explore/expectations.h"
#include "tests/explore/explored.h"
#include "tests/explore/explorer.h"

namespace tutti::explore {
namespace {

constexpr size_t kSlots = 2;
using Ring = ChunkRingOf<Explored, kSlots>;

// The shared memory of a rank, which its peer reads. Each number names its chunk.
struct Block {
  std::array<Ring::Line, kSlots> lines;
  Ring::Progress progress;
  std::array<uint64_t, kSlots> inputs{}, results{};
  Atomic<uint64_t> element{1};  // the program's element, which the peer reads in place
  SleepLineOf<Explored> sleeper;
  Bell bell;
};

using Blocks = std::array<Block, 2>;

// One rank, which handles its chunks as a Pipeline does.
class Rank {
  Block& own() { return blocks_[rank_]; }
  Block& peer() { return blocks_[1 - rank_]; }
  auto bell() {
    return [this](int rank) { blocks_[static_cast<size_t>(rank)].bell.ring(); };
  }
  auto its_end() {
    return [this] {
      return ring_.reduced() == short_chunk_ || !ring_.all_tell_alike(ring_.reduced());
    };
  }

 public:
  Rank(Blocks& blocks, size_t rank)
      : blocks_(blocks),
        rank_(rank),
        ring_(static_cast<int>(rank),
              {{blocks[0].lines.data(), &blocks[0].progress, 0},
               {blocks[1].lines.data(), &blocks[1].progress, 0}},
              {&blocks[0].sleeper, &blocks[1].sleeper}) {}

  Ring& ring() { return ring_; }
  /// `chunk` ends after it is reduced; all other chunks have three stages.
  void let_end_when_reduced(uint64_t chunk) { short_chunk_ = chunk; }

  /// Runs until all chunks are drained or `ends()` returns true.
  template <class Ends>
  void drive(const Ends& ends) {
    while (ring_.drained() != ring_.end() && !ends()) {
      if (step()) continue;
      own().bell.silence();
      own().sleeper.put_up();
      if (ring_.may_sleep(its_end()) && !ends()) own().bell.wait(kForEver);
      own().sleeper.take_down();
    }
  }
  void drive() {
    drive([] { return false; });
  }
  /// Runs the next chunk as a blocking call that polls its peer `looks` times before it drives. The
  /// chunk ends when it is reduced.
  void block(int looks) {
    require(ring_.can_begin(), "a queue in which all is over takes no chunk");
    const uint64_t chunk = ring_.extend(1);
    let_end_when_reduced(chunk);
    fill();
    if (ring_.await_filled(looks, chunk, bell())) reduce();
    ring_.wake_sleepers(bell());
    drive();
  }
  void ring_peer() { peer().bell.ring(); }
  /// This rank publishes `subject` with its chunks, beside their elements.
  void say(uint64_t subject) { subject_ = subject; }
  /// Reads the peer's element at each reduction from now on, and keeps it in `seen`.
  void read_in_place() { reads_in_place_ = true; }
  uint64_t seen = 0;
  bool is_disagreement = false;

 private:
  bool step() {
    const auto stage = ring_.next_stage(its_end());
    if (stage == Ring::Stage::fill) fill();
    if (stage == Ring::Stage::reduce) reduce();
    ring_.wake_sleepers(bell());
    if (stage == Ring::Stage::drain) drain();
    if (stage != Ring::Stage::none) return true;
    if (!ring_.publish_retired()) return false;
    ring_.wake_sleepers(bell());
    return true;
  }
  void fill() {
    const uint64_t chunk = ring_.filled();
    require(chunk >= ring_.drained(), "a chunk that was skipped is filled");
    auto& input = own().inputs[Ring::slot_of(chunk)];
    Explored::writes(&input);
    input = chunk + 1;
    ring_.own_line(chunk).call.subject = subject_;
    ring_.publish_filled();
  }
  void reduce() {
    const uint64_t chunk = ring_.reduced();
    if (!ring_.all_tell_alike(chunk)) {
      is_disagreement = true;
      ring_.skip_to(ring_.end());
      return;
    }
    for (auto& block : blocks_) {
      const auto& input = block.inputs[Ring::slot_of(chunk)];
      Explored::reads(&input);
      require(input == chunk + 1, "the input of another chunk is reduced");
    }
    if (reads_in_place_) seen = peer().element.load(kRelaxed);
    if (chunk == short_chunk_) {
      require(ring_.drained() == chunk, "a chunk is over before the one ahead of it");
      ring_.finish_reduced();
      return;
    }
    auto& result = own().results[Ring::slot_of(chunk)];
    Explored::writes(&result);
    result = chunk + 1;
    ring_.publish_reduced();
  }
  void drain() {
    const uint64_t chunk = ring_.drained();
    for (auto& block : blocks_) {
      const auto& result = block.results[Ring::slot_of(chunk)];
      Explored::reads(&result);
      require(result == chunk + 1, "the result of another chunk is drained");
    }
    ring_.finish_drained();
  }

  Blocks& blocks_;
  const size_t rank_;
  Ring ring_;
  uint64_t short_chunk_ = ~uint64_t{0};
  uint64_t subject_ = 0;
  bool reads_in_place_ = false;
};

struct TwoRanks {
  Blocks blocks;
  Rank first{blocks, 0}, second{blocks, 1};
  std::array<Atomic<bool>, 2> has_left{};

  Rank& rank(size_t number) { return number == 0 ? first : second; }
  // A flag outside the queue shows that both ranks have left it.
  void leave(size_t number) {
    has_left[number].store(true);
    rank(number).ring_peer();
    while (!has_left[1 - number].load()) {
      blocks[number].bell.silence();
      if (!has_left[1 - number].load()) blocks[number].bell.wait(kForEver);
    }
  }
};

template <class Body>
void expect_sound(const Body& body, bool is_aborted = false) {
  const auto outcome = explore([&](Model& model) {
    auto two = std::make_shared<TwoRanks>();
    for (const size_t number : {0, 1})
      model.thread(number == 0 ? "rank 0" : "rank 1", [=] { body(*two, number); });
    if (!is_aborted) return;
    model.thread("who aborts", [=] {
      for (const size_t number : {0, 1}) {
        two->rank(number).ring().abort();
        two->blocks[number].bell.ring();
      }
    });
  });
  EXPECT_EQ(outcome.failure, "") << outcome.trace;
  EXPECT_TRUE(outcome.complete);
  testing::Test::RecordProperty("runs", static_cast<int>(outcome.runs));
}

TEST(ChunkRingModel, ThreeChunksGoThroughTwoSlots) {
  expect_sound([](TwoRanks& two, size_t number) {
    auto& rank = two.rank(number);
    rank.ring().extend(3);
    rank.let_end_when_reduced(1);
    rank.drive();
    require(rank.ring().drained() == 3, "a chunk is left over");
  });
}

TEST(ChunkRingModel, AnAbortEndsBoth) {
  expect_sound(
      [](TwoRanks& two, size_t number) {
        auto& rank = two.rank(number);
        rank.ring().extend(3);
        rank.drive([&] { return rank.ring().is_aborted(); });
        require(rank.ring().drained() == 3 || rank.ring().is_aborted(),
                "a rank stops before the end although nobody has aborted");
      },
      true);
}

// One rank makes a blocking call and polls its peer, which sleeps as soon as it finds nothing.
TEST(ChunkRingModel, ABlockingCallWakesItsPeer) {
  expect_sound([](TwoRanks& two, size_t number) {
    auto& rank = two.rank(number);
    for (uint64_t chunk = 0; chunk < 3; ++chunk) {
      if (number == 0) {
        rank.block(2);
      } else {
        rank.ring().extend(1);
        rank.let_end_when_reduced(chunk);
        rank.drive();
      }
    }
  });
}

// The ranks disagree about an operation of three chunks. Both skip it, and agree on the next one.
TEST(ChunkRingModel, WhatRanksDisagreeOnIsSkipped) {
  expect_sound([](TwoRanks& two, size_t number) {
    auto& rank = two.rank(number);
    rank.say(number);
    rank.ring().extend(3);
    rank.drive();
    require(rank.is_disagreement, "two operations are taken for one");
    rank.say(7);
    rank.ring().extend(1);
    rank.drive();
    require(rank.ring().drained() == 4, "what comes after a disagreement is not done");
  });
}

// Both ranks leave the queue in the middle, the second one when it learns that the first one has
// left. Then both start the queue again.
TEST(ChunkRingModel, AStoppedRingBeginsAnew) {
  constexpr uint64_t kSecondEpoch = 16;
  expect_sound([](TwoRanks& two, size_t number) {
    auto& rank = two.rank(number);
    rank.ring().extend(3);
    if (number == 0) {
      rank.ring().give_up(1);
    } else {
      rank.drive([&] { return two.has_left[0].load(); });
      rank.ring().give_up(1);
    }
    rank.drive([&] { return rank.ring().drained() >= 1; });
    if (number == 0)
      require(rank.ring().filled() == 1, "a rank goes on where its queue was stopped");
    two.leave(number);
    rank.ring().begin_epoch(kSecondEpoch);
    rank.ring().extend(3);
    rank.drive();
    require(rank.ring().drained() == kSecondEpoch + 3, "a queue that began anew stands still");
  });
}

// Rank 0 has reduced the chunk when it gives the chunk up and changes its memory. Rank 1 may be
// about to reduce that memory.
TEST(ChunkRingModel, WhatWasChangedAfterItWasGivenUpIsNoInput) {
  expect_sound([](TwoRanks& two, size_t number) {
    auto& rank = two.rank(number);
    rank.read_in_place();
    rank.ring().extend(1);
    if (number == 0) {
      rank.drive([&] { return rank.ring().reduced() == 1; });
      rank.ring().give_up(0);
      two.blocks[0].element.store(2, kRelaxed);
      two.has_left[0].store(true);
      rank.ring_peer();
    } else {
      rank.drive([&] { return two.has_left[0].load(); });
      require(rank.ring().drained() == 0 || rank.seen == 1,
              "an operation ends well with what was changed after it was given up");
    }
  });
}

}  // namespace
}  // namespace tutti::explore
