#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <random>

#include "tests/support/bulk.h"
#include "tests/support/ranks.h"
#include "tutti/backends/plugins.h"
#include "tutti/core/arena.h"
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

// determinism=rank_order gives the same bits whatever the buckets, the arrival order and the
// segments.
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

// If a tensor is too long for one shot, every backend cuts, distributes and forwards its elements
// in its own way. The order of the ranks in each sum must not depend on that.
class DeterminismOver : public testing::TestWithParam<std::string> {
 protected:
  static constexpr int kRanks = 3;

  void SetUp() override {
    try {
      load_backends(GetParam(), {}, {});
    } catch (const Error& error) {
      GTEST_SKIP() << "backend " << GetParam() << " is not built here";
    }
#ifdef __SANITIZE_THREAD__
    if (GetParam() == "ucx") GTEST_SKIP() << "its order of memory accesses is not seen by tsan";
#endif
  }
  static std::vector<float> terms(int rank, size_t count) {
    std::vector<float> values(count);
    test::fill_terms(values, static_cast<uint64_t>(rank));
    return values;
  }
  // Calls `check` with the result of every rank for each call: by name in place, blocking, and in
  // an arena.
  static void sum(size_t count, Determinism determinism,
                  const std::function<void(int call, const std::vector<float>&)>& check) {
    std::mutex mutex;
    test::run_threads(
        kRanks,
        [&](Communicator& comm) {
          const auto own = terms(comm.rank(), count);
          GradientArena arena(comm, {{"array", Shape{static_cast<int64_t>(count)}}},
                              {.op = ReduceOp::sum});
          // The first steps are negotiated, the later ones replayed from a plan.
          for (int step = 0; step < 6; ++step) {
            auto values = own, blocking = own;
            auto* array = arena["array"].as<float>();
            std::copy(own.begin(), own.end(), array);
            auto work = comm.allreduce("tensor", values, ReduceOp::sum);
            arena.ready("array");
            arena.wait();
            work.wait();
            comm.allreduce_blocking("blocking", blocking, ReduceOp::sum);
            const std::lock_guard lock(mutex);
            check(3 * step, values);
            check(3 * step + 1, blocking);
            check(3 * step + 2, {array, array + count});
          }
        },
        [&](Options& options) {
          options.backend = GetParam();
          options.determinism = determinism;
          options.fusion_bytes = 64 << 10;
          options.partition_bytes = 1 << 20;
          options.segment_bytes = 32 << 10;
        });
  }
};

TEST_P(DeterminismOver, LongTensorsAreSummedInRankOrder) {
  for (const size_t count : {size_t{100}, size_t{40'000}, size_t{700'001}}) {
    auto expected = terms(0, count);
    auto backwards = terms(kRanks - 1, count);
    for (int rank = 1; rank < kRanks; ++rank) {
      const auto next = terms(rank, count), last = terms(kRanks - 1 - rank, count);
      for (size_t i = 0; i < count; ++i) {
        expected[i] += next[i];
        backwards[i] += last[i];
      }
    }
    ASSERT_NE(expected, backwards);  // otherwise the order would not show
    sum(count, Determinism::rank_order, [&](int call, const auto& values) {
      EXPECT_TRUE(test::same(values, expected)) << "call " << call << " of " << count;
    });
  }
}

TEST_P(DeterminismOver, AllRanksHoldTheSameBitsOfLongTensors) {
  for (const size_t count : {size_t{40'000}, size_t{700'001}}) {
    std::map<int, std::vector<float>> first;  // per call: the result of the first rank that checked
    sum(count, Determinism::fastest, [&](int call, const auto& values) {
      EXPECT_TRUE(test::same(first.try_emplace(call, values).first->second, values))
          << "call " << call << " of " << count;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, DeterminismOver,
                         testing::Values("memory", "shm", "tcp", "hierarchical", "gloo", "ucx"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tutti
