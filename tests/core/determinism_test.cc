#include <gtest/gtest.h>

#include <cstring>
#include <mutex>
#include <numeric>
#include <random>

#include "tests/support/ranks.h"
#include "tutti/core/communicator.h"

namespace tutti {
namespace {

constexpr int kTensors = 5;

std::vector<std::vector<float>> input(int rank) {
  std::mt19937 random(static_cast<unsigned>(1000 + rank));
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> tensors;
  for (int t = 0; t < kTensors; ++t) {
    tensors.emplace_back(static_cast<size_t>(50 + 77 * t));
    for (auto& value : tensors.back()) value = normal(random);
  }
  return tensors;
}

// determinism=rank_order: the same bits whatever the buckets, the arrival order and the segments.
TEST(Determinism, RankOrderIsBitwiseEqualOverRandomLayouts) {
  constexpr int kRanks = 3, kLayouts = test::repetitions(1000);
  std::vector<std::vector<float>> reference;
  std::mutex mutex;
  for (unsigned seed = 0; seed < kLayouts; ++seed) {
    std::mt19937 random(seed);
    const int64_t fusion = static_cast<int64_t>(random() % 3000);
    const int64_t partition = 4 + static_cast<int64_t>(random() % 1500);
    const int64_t segment = 4 + static_cast<int64_t>(random() % 900);
    test::run_threads(
        kRanks,
        [&](Communicator& comm) {
          auto tensors = input(comm.rank());
          std::mt19937 shuffle(seed * 31 + static_cast<unsigned>(comm.rank()));
          std::vector<int> order(kTensors);
          std::iota(order.begin(), order.end(), 0);
          std::shuffle(order.begin(), order.end(), shuffle);
          std::vector<Work> works;
          for (const int t : order)
            works.push_back(
                comm.allreduce("t" + std::to_string(t), tensors[static_cast<size_t>(t)]));
          for (auto& work : works) work.wait();
          const std::lock_guard lock(mutex);
          if (reference.empty()) reference = tensors;
          for (size_t t = 0; t < kTensors; ++t)
            ASSERT_EQ(std::memcmp(tensors[t].data(), reference[t].data(), tensors[t].size() * 4), 0)
                << "seed " << seed << " rank " << comm.rank() << " tensor " << t;
        },
        [&](Options& options) {
          options.determinism = Determinism::rank_order;
          options.fusion_bytes = fusion;
          options.partition_bytes = partition;
          options.segment_bytes = segment;
        });
    if (testing::Test::HasFailure()) return;
  }
}

// By default all ranks hold the same bits, whichever algorithm ran.
TEST(Determinism, AllRanksHoldTheSameBits) {
  for (const char* algorithm :
       {"ring", "halving_doubling", "recursive_doubling", "one_shot", "two_shot"})
    for (const int size : {2, 3, 4, 5}) {
      std::vector<float> reference;
      std::mutex mutex;
      test::run_threads(
          size,
          [&](Communicator& comm) {
            auto values = input(comm.rank())[4];
            comm.allreduce("x", values).wait();
            const std::lock_guard lock(mutex);
            if (reference.empty()) reference = values;
            EXPECT_EQ(std::memcmp(values.data(), reference.data(), values.size() * 4), 0)
                << algorithm << " of " << size;
          },
          [&](Options& options) {
            options.algorithms = std::string("allreduce:0-inf=") + algorithm;
          });
    }
}

}  // namespace
}  // namespace tutti
