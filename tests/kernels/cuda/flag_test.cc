// The protocol of the flag kernels on threads: one thread per block, all ranks in one process,
// flags by std::atomic. A race that the GPU's memory model would allow is visible to thread and
// address sanitizer here.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/kernels/cuda/host_atomics.h"
#include "tests/support/ranks.h"
#include "tutti/base/deadline.h"
#include "tutti/kernels/cuda/flags/flag_tile.h"

namespace tutti {
namespace {

using cuda::FlagBoard;
using cuda::FlagCall;
using cuda::FlagPacket;
using cuda::FlagState;

// The memory of all ranks, and counts of right and wrong results.
class FlagRanks {
 public:
  static constexpr int kThreads = 8;  // per block

  FlagRanks(FlagVariant variant, int size, int blocks, int64_t count, uint64_t seed)
      : size_(size),
        blocks_(blocks),
        count_(count),
        seed_(seed),
        ranks_(static_cast<size_t>(size)) {
    call_.variant = variant;
    call_.size = size;
    call_.blocks = blocks;
    call_.abort = &abort_;
    call_.table = {};
    call_.table.count = count;
    call_.table.dtype = DataType::f32;
    call_.table.op = ReduceOp::sum;
    call_.table.input_count = call_.table.output_count = size;
    cuda::cut_flags(call_);
    for (int rank = 0; rank < size; ++rank) {
      auto& own = ranks_[static_cast<size_t>(rank)];
      own.input = std::make_unique<Floats>(static_cast<size_t>(count));
      // The two-shot variant stores into the memory that it loads from.
      if (variant != FlagVariant::two_shot)
        own.output = std::make_unique<Floats>(static_cast<size_t>(count));
      own.board = std::make_unique<FlagBoard>();
      own.packets.resize(
          static_cast<size_t>(cuda::packet_places(call_.packets_of_block, blocks, size)));
      call_.table.inputs[rank] = reinterpret_cast<const std::byte*>(own.input->data());
      call_.table.outputs[rank] = reinterpret_cast<std::byte*>(output(own).data());
      call_.boards[rank] = own.board.get();
      call_.packets[rank] = own.packets.data();
    }
  }

  // Runs rounds on all ranks; rank `killed` stops at round `at`, as if its process had died.
  void run(int rounds, int killed = -1, int at = 0, double patience = 60) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size_; ++rank)
      for (int block = 0; block < blocks_; ++block)
        threads.emplace_back(
            [=, this] { run_block(rank, block, rank == killed ? at : rounds, patience); });
    for (auto& thread : threads) thread.join();
  }
  void abort() { std::atomic_ref(abort_).store(1); }
  const FlagRecord& record(int rank) const { return ranks_[static_cast<size_t>(rank)].record; }
  int64_t wrong() const { return wrong_.load(); }
  int64_t right() const { return right_.load(); }

 private:
  using Floats = std::vector<float>;
  struct Rank {
    std::unique_ptr<Floats> input, output;
    std::unique_ptr<FlagBoard> board;
    std::vector<FlagPacket> packets;
    FlagState state = {};
    FlagRecord record = {};
  };
  static Floats& output(Rank& rank) { return rank.output ? *rank.output : *rank.input; }

  // The elements whose inputs this block waits for, and whose outputs it may read afterwards.
  std::vector<cuda::FlagPart> parts_of(int block) const {
    if (call_.variant != FlagVariant::two_shot) return {cuda::part_of(count_, call_.part, block)};
    std::vector<cuda::FlagPart> parts;
    for (int rank = 0; rank < size_; ++rank) {
      const auto share = cuda::part_of(count_, call_.share, rank);
      auto part = cuda::part_of(share.count, call_.part, block);
      part.begin += share.begin;
      parts.push_back(part);
    }
    return parts;
  }
  static float value(int rank, int round, int64_t i) {
    return static_cast<float>((rank + 1) * 1000 + round % 500 + i % 7);
  }
  void run_block(int rank, int block, int rounds, double patience) {
    auto& own = ranks_[static_cast<size_t>(rank)];
    FlagCall call = call_;
    call.rank = rank;
    call.state = &own.state;
    call.record = &own.record;
    // The limit applies to each round, because a busy machine makes many rounds slow.
    const auto bound = std::chrono::milliseconds(static_cast<int64_t>(patience * 1000));
    test::HostAtomics atomics{
        std::minstd_rand(static_cast<unsigned>(seed_ + static_cast<uint64_t>(rank * 64 + block))),
        Clock::now() + bound};
    const auto parts = parts_of(block);
    for (int round = 1; round <= rounds; ++round) {
      atomics.deadline = Clock::now() + bound;
      for (const auto& part : parts)
        for (int64_t i = part.begin; i < part.begin + part.count; ++i)
          (*own.input)[static_cast<size_t>(i)] = value(rank, round, i);
      // Simulates a rank that is stopped for a while.
      if (atomics.random() % 2000 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(3));
      for (int phase = 0; phase < cuda::kFlagPhases; ++phase) {
        bool go_on = true;
        for (int thread = 0; thread < kThreads; ++thread)
          go_on &=
              call.variant == FlagVariant::packets
                  ? cuda::flag_phase<float, true>(call, phase, block, thread, kThreads, atomics)
                  : cuda::flag_phase<float, false>(call, phase, block, thread, kThreads, atomics);
        if (!go_on) return;
      }
      for (const auto& part : parts)
        for (int64_t i = part.begin; i < part.begin + part.count; ++i) {
          float expected = 0;
          for (int other = 0; other < size_; ++other) expected += value(other, round, i);
          (output(own)[static_cast<size_t>(i)] == expected ? right_ : wrong_)
              .fetch_add(1, std::memory_order_relaxed);
        }
    }
  }

  const int size_, blocks_;
  const int64_t count_;
  const uint64_t seed_;
  FlagCall call_;
  uint32_t abort_ = 0;
  std::vector<Rank> ranks_;
  std::atomic<int64_t> wrong_{0}, right_{0};
};

std::string name_of(FlagVariant variant) {
  return variant == FlagVariant::one_shot   ? "one_shot"
         : variant == FlagVariant::two_shot ? "two_shot"
                                            : "packets";
}
const auto kVariants =
    testing::Values(FlagVariant::one_shot, FlagVariant::two_shot, FlagVariant::packets);

// Runs this number of rounds per variant, with simulated delays and stops of ranks.
class FlagRounds : public testing::TestWithParam<std::tuple<FlagVariant, int>> {};
INSTANTIATE_TEST_SUITE_P(Daily, FlagRounds, testing::Combine(kVariants, testing::Values(3'400)),
                         [](const auto& info) { return name_of(std::get<0>(info.param)); });
INSTANTIATE_TEST_SUITE_P(Full, FlagRounds, testing::Combine(kVariants, testing::Values(340'000)),
                         [](const auto& info) { return name_of(std::get<0>(info.param)); });

TEST_P(FlagRounds, AreSumsOfAllRanks) {
  const auto [variant, all] = GetParam();
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  const int rounds = test::repetitions(all) / 3;
  for (const auto& [size, blocks, count] : {std::tuple{2, 1, 40}, {3, 2, 101}, {4, 1, 7}}) {
    FlagRanks ranks(variant, size, blocks, count, seed);
    ranks.run(rounds);
    EXPECT_EQ(ranks.wrong(), 0);
    EXPECT_EQ(ranks.right(), int64_t{size} * count * rounds);
    for (int rank = 0; rank < size; ++rank) EXPECT_EQ(ranks.record(rank).is_set, 0u);
  }
}

class FlagProtocol : public testing::TestWithParam<FlagVariant> {};
INSTANTIATE_TEST_SUITE_P(Variants, FlagProtocol, kVariants,
                         [](const auto& info) { return name_of(info.param); });

// A rank has died: the others leave in time, record the peer that they waited for, and no later
// round runs.
TEST_P(FlagProtocol, ARankThatDiesIsNamedAndNobodyHangs) {
  FlagRanks ranks(GetParam(), 3, 2, 101, 7);
  const auto begin = Clock::now();
  ranks.run(1000, 1, 20, 0.5);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(20));
  EXPECT_EQ(ranks.wrong(), 0);
  int named = 0;
  for (const int rank : {0, 2}) {
    const auto& record = ranks.record(rank);
    ASSERT_EQ(record.is_set, 1u);
    EXPECT_EQ(record.rank, rank);
    EXPECT_GT(static_cast<int32_t>(record.expected - record.seen), 0);
    named += record.peer == 1;
  }
  EXPECT_GE(named, 1);
}

TEST_P(FlagProtocol, AnAbortEndsWaitsAtOnce) {
  FlagRanks ranks(GetParam(), 2, 1, 40, 7);
  std::thread aborting([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ranks.abort();
  });
  const auto begin = Clock::now();
  ranks.run(1 << 30, 1, 20, 30);
  aborting.join();
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
  EXPECT_EQ(ranks.record(0).peer, 1);
}

}  // namespace
}  // namespace tutti
