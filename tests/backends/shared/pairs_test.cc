// The pipelines between two ranks, in one thread that runs both ranks in turn.

#include "tutti/backends/shared/pairs.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "tutti/collectives/region.h"

namespace tutti {
namespace {

// A region whose memory outlives it. Its handle is an address.
class PlacedRegion final : public Region {
 public:
  explicit PlacedRegion(Region& memory) : memory_(memory) {}
  std::byte* data() const override { return memory_.data(); }
  size_t bytes() const override { return memory_.bytes(); }
  RegionHandle handle() const override {
    return {RegionHandle::Kind::address, -1, reinterpret_cast<uint64_t>(data()), bytes()};
  }

 private:
  Region& memory_;
};

// Memory of this process. With `is_full`, a rank has none.
class Memory final : public SharedMemory {
 public:
  explicit Memory(std::array<bool, 2>& rung) : rung_(rung) {}
  std::unique_ptr<Region> allocate(size_t) override {
    throw std::logic_error("a peer may read it when this rank has left");
  }
  std::unique_ptr<Region> allocate_for_good(size_t bytes) override {
    if (is_full) throw Error(ErrorCode::out_of_memory, "no memory is left");
    kept.push_back(make_heap_region(bytes));
    std::fill_n(kept.back()->data(), bytes, std::byte{0});
    return std::make_unique<PlacedRegion>(*kept.back());
  }
  uint64_t place_of(const std::byte*, size_t) const override { return kNowhere; }
  std::byte* at(int, uint64_t place, size_t) override {
    return reinterpret_cast<std::byte*>(place);
  }
  std::byte* first(int) override { return nullptr; }
  void ring(int rank) override { rung_[static_cast<size_t>(rank)] = true; }

  bool is_full = false;
  std::vector<std::unique_ptr<Region>> kept;

 private:
  std::array<bool, 2>& rung_;
};

class PairsOfTwo : public testing::Test {
 protected:
  OperationPtr start(int rank, CollectiveKind kind, std::vector<int>& values) {
    counts_[static_cast<size_t>(rank)] = static_cast<int64_t>(values.size());
    Collective collective;
    collective.kind = kind;
    collective.dtype = DataType::i32;
    collective.root = 1 - rank;
    collective.send_counts = {&counts_[static_cast<size_t>(rank)], 1};
    collective.input = collective.output = reinterpret_cast<std::byte*>(values.data());
    Launch launch;
    launch.queue = 0;
    launch.name = "x";
    return pairs_[static_cast<size_t>(rank)]->start(collective, launch);
  }
  // Advances both until both have ended, or 100 turns have passed.
  static void advance(Operation& one, Operation& other) {
    for (int turn = 0; turn < 100; ++turn) {
      const auto state = one.advance(), states = other.advance();
      if (state != OperationState::pending && states != OperationState::pending) return;
    }
  }

  std::array<bool, 2> rung_{};
  Memory memories_[2] = {Memory(rung_), Memory(rung_)};
  alignas(64) std::array<std::array<std::byte, 64>, 2> words_{};
  std::array<SleepLine, 2> sleep_;
  std::array<int64_t, 2> counts_{};
  std::unique_ptr<Pairs> pairs_[2] = {make(0), make(1)};

 private:
  std::unique_ptr<Pairs> make(int rank) {
    return std::make_unique<Pairs>(rank, memories_[rank],
                                   std::vector<std::byte*>{words_[0].data(), words_[1].data()},
                                   std::vector<SleepLine*>{&sleep_[0], &sleep_[1]});
  }
};

TEST_F(PairsOfTwo, MeetAtTheirFirstCallAndNotBefore) {
  std::vector<int> sent{1, 2, 3}, got(3);
  const auto receive = start(1, CollectiveKind::recv, got);
  EXPECT_EQ(receive->advance(), OperationState::pending);
  EXPECT_TRUE(receive->lacks_ranks());
  EXPECT_EQ(pairs_[1]->missing(), std::vector<int>{0});
  EXPECT_FALSE(pairs_[1]->idle());
  EXPECT_TRUE(pairs_[1]->may_sleep());
  EXPECT_TRUE(memories_[0].kept.empty());
  sleep_[1].sleeps = 1;

  const auto send = start(0, CollectiveKind::send, sent);
  EXPECT_TRUE(rung_[1]);
  EXPECT_FALSE(rung_[0]);
  EXPECT_EQ(sleep_[1].sleeps, 0u);
  EXPECT_FALSE(pairs_[1]->may_sleep());
  advance(*send, *receive);
  EXPECT_EQ(send->advance(), OperationState::done);
  EXPECT_EQ(receive->advance(), OperationState::done);
  EXPECT_EQ(got, sent);

  for (int turn = 0; turn < 20; ++turn) {
    sent[1] = turn;
    const auto back = start(1, CollectiveKind::send, sent),
               taken = start(0, CollectiveKind::recv, got);
    advance(*back, *taken);
    EXPECT_EQ(got, sent);
  }
  EXPECT_TRUE(pairs_[0]->idle());
  EXPECT_TRUE(pairs_[1]->idle());
  EXPECT_EQ(memories_[0].kept.size(), 1u);
  EXPECT_EQ(memories_[1].kept.size(), 1u);
}

// The sender is done while the receiver still has the last chunks to read.
TEST_F(PairsOfTwo, WhatWasSentIsThereWhenItsSenderHasLeft) {
  std::vector<int> sent(600'000), got(sent.size(), -1);
  std::iota(sent.begin(), sent.end(), 0);
  auto send = start(0, CollectiveKind::send, sent);
  const auto receive = start(1, CollectiveKind::recv, got);
  int turns = 0;
  while (send->advance() == OperationState::pending && ++turns < 1'000)
    static_cast<void>(receive->advance());
  ASSERT_EQ(send->advance(), OperationState::done);
  send.reset();
  pairs_[0].reset();
  std::fill(sent.begin(), sent.end(), -1);
  for (int turn = 0; turn < 2 && receive->advance() == OperationState::pending; ++turn) continue;
  ASSERT_EQ(receive->advance(), OperationState::done);
  for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], static_cast<int>(i));
}

class OneOfTwoIsFull : public PairsOfTwo, public testing::WithParamInterface<int> {};

TEST_P(OneOfTwoIsFull, AndBothHearOfIt) {
  memories_[GetParam()].is_full = true;
  std::vector<int> sent{1, 2, 3}, got(3, -1);
  const int full = GetParam(), other = 1 - full;
  const auto start_one = [&](int rank) {
    return rank == 0 ? start(0, CollectiveKind::send, sent) : start(1, CollectiveKind::recv, got);
  };
  for (const bool is_first : {true, false}) {
    const auto waits = start_one(other);
    sleep_[static_cast<size_t>(other)].sleeps = 1;
    const auto refused = start_one(full);
    // The second time, the other rank is known to be full.
    EXPECT_EQ(rung_[static_cast<size_t>(other)], is_first);
    rung_[static_cast<size_t>(other)] = false;
    advance(*waits, *refused);
    for (const auto* operation : {waits.get(), refused.get()}) {
      ASSERT_NE(operation->failure(), nullptr);
      EXPECT_EQ(operation->failure()->code(), ErrorCode::out_of_memory);
      EXPECT_NE(std::string_view(operation->failure()->what())
                    .find("no shared memory for the blocking sends and receives between the two"),
                std::string_view::npos);
    }
  }
  EXPECT_EQ(got, std::vector<int>(3, -1));
  for (const auto& pairs : pairs_) EXPECT_TRUE(pairs->idle());
}

INSTANTIATE_TEST_SUITE_P(Rank, OneOfTwoIsFull, testing::Values(0, 1));

TEST_F(PairsOfTwo, AbortEndsWhatWaits) {
  std::vector<int> sent{1, 2, 3}, got(3, -1);
  const auto alone = start(0, CollectiveKind::send, sent);
  EXPECT_EQ(alone->advance(), OperationState::pending);
  pairs_[0]->abort();
  EXPECT_EQ(alone->advance(), OperationState::failed);
  EXPECT_TRUE(pairs_[0]->idle());

  const auto receive = start(1, CollectiveKind::recv, got);
  EXPECT_EQ(receive->advance(), OperationState::pending);
  pairs_[1]->abort();
  EXPECT_TRUE(pairs_[1]->progress());
  EXPECT_EQ(receive->advance(), OperationState::failed);
  EXPECT_EQ(got, std::vector<int>(3, -1));
}

TEST_F(PairsOfTwo, ACancelledCallTouchesNothingMore) {
  std::vector<int> sent{1, 2, 3}, got(3, -1);
  {
    const auto receive = start(1, CollectiveKind::recv, got);
    receive->cancel();
    EXPECT_EQ(receive->advance(), OperationState::failed);
    EXPECT_TRUE(pairs_[1]->idle());
  }
  const auto send = start(0, CollectiveKind::send, sent);
  for (int turn = 0; turn < 10; ++turn) EXPECT_EQ(send->advance(), OperationState::pending);
  EXPECT_EQ(got, std::vector<int>(3, -1));
}

}  // namespace
}  // namespace tutti
