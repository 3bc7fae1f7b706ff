// Each sample is dealt exactly once within an epoch, whatever ranks come and go.

#include "tutti/adapters/sampling/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "tests/support/expect_error.h"

namespace tutti {
namespace {

using Samples = std::vector<int64_t>;

TEST(Sampler, AnEpochThatIsResumedDealsEachSampleOnce) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const int64_t samples = 900 + static_cast<int64_t>(random() % 200);
    std::multiset<int64_t> seen;
    Samples order;
    std::string state = Sampler(samples, {.seed = seed}).state();
    int resumes = 0;
    for (bool is_over = false; !is_over; ++resumes) {
      const int size = 1 + static_cast<int>(random() % 6);
      const int steps = static_cast<int>(random() % 4);
      const auto batch = static_cast<int64_t>(1 + random() % 5);
      std::string reached;
      std::vector<Samples> dealt(static_cast<size_t>(steps));
      for (int rank = 0; rank < size; ++rank) {
        Sampler sampler(samples, {.seed = seed});
        sampler.restore(state);
        for (auto& step : dealt) {
          const auto own = sampler.take(batch, rank, size);
          EXPECT_LE(own.size(), static_cast<size_t>(batch));
          step.insert(step.end(), own.begin(), own.end());
        }
        if (rank == 0) reached = sampler.state();
        EXPECT_EQ(sampler.state(), reached) << "rank " << rank;
        is_over = sampler.left() == 0;
      }
      for (const auto& step : dealt) {
        seen.insert(step.begin(), step.end());
        order.insert(order.end(), step.begin(), step.end());
      }
      state = reached;
    }
    EXPECT_GE(resumes, 20);
    EXPECT_EQ(static_cast<int64_t>(seen.size()), samples);
    EXPECT_EQ(static_cast<int64_t>(std::set<int64_t>(seen.begin(), seen.end()).size()), samples);
    // The steps of all ranks together follow one order, whichever rank took them.
    EXPECT_EQ(order, permutation(samples, seed, 0));
  }
}

TEST(Sampler, TheLastStepIsDealtEvenly) {
  Samples counts;
  for (int rank = 0; rank < 4; ++rank) {
    Sampler sampler(22);
    EXPECT_EQ(sampler.take(4, rank, 4).size(), 4U);
    counts.push_back(static_cast<int64_t>(sampler.take(4, rank, 4).size()));
    EXPECT_TRUE(sampler.take(4, rank, 4).empty());
  }
  EXPECT_EQ(counts, (Samples{2, 2, 1, 1}));
}

TEST(Sampler, EveryEpochAndSeedHasItsOwnOrder) {
  const auto first = permutation(100, 1, 0);
  EXPECT_EQ(permutation(100, 1, 0), first);
  EXPECT_NE(permutation(100, 1, 1), first);
  EXPECT_NE(permutation(100, 2, 0), first);
  Sampler sampler(100);
  sampler.take(30, 0, 2);
  sampler.next_epoch();
  EXPECT_EQ(sampler.epoch(), 1);
  EXPECT_EQ(sampler.consumed(), 0);
  EXPECT_EQ(sampler.take(100, 0, 1), permutation(100, 1, 1));
  Sampler plain(3, {.shuffle = false});
  EXPECT_EQ(plain.take(3, 0, 1), (Samples{0, 1, 2}));
}

TEST(Sampler, BadInput) {
  test::expect_refused("Sampler: 0 samples, expected at least 1", [] { Sampler sampler(0); });
  Sampler sampler(10);
  test::expect_refused("Sampler: batches of 0 for rank 0 of 1", [&] { sampler.take(0, 0, 1); });
  test::expect_refused("batches of 1 for rank 2 of 2", [&] { sampler.take(1, 2, 2); });
  for (const std::string state :
       {"", "epoch 1", "epoch 1 consumed 11 of 10 seed 1", "epoch 1 consumed 3 of 11 seed 1",
        "epoch 1 consumed 3 of 10 seed 2", "epoch -1 consumed 3 of 10 seed 1",
        "epoch 1 consumed 3 x of 10 seed 1", "epoch 1 consumed 3 of 10 seed 1 order 3",
        "epoch 1 consumed 3 of 10 seed 1 order 2 x"})
    test::expect_error(
        ErrorCode::corrupt_data,
        "Sampler: cannot go on from \"" + state +
            "\", expected \"epoch E consumed C of 10 seed 1 order 2\" with C up to 10",
        [&] { sampler.restore(state); });
  EXPECT_EQ(sampler.state(), "epoch 0 consumed 0 of 10 seed 1 order 2");
  sampler.restore("epoch 1 consumed 3 of 10 seed 1 order 2");
  EXPECT_EQ(sampler.left(), 7);
}

// States of the first version used another order. They can be restored where the order does not
// matter.
TEST(Sampler, AnOlderOrderIsRefusedWithinAShuffledEpochOnly) {
  Sampler sampler(10), plain(10, {.shuffle = false});
  test::expect_error(
      ErrorCode::corrupt_data,
      "Sampler: the saved epoch has the samples in order 1, but this version uses order 2, so some "
      "samples would come twice and others never; continue from the beginning of an epoch",
      [&] { sampler.restore("epoch 4 consumed 3 of 10 seed 1"); });
  EXPECT_EQ(sampler.state(), "epoch 0 consumed 0 of 10 seed 1 order 2");
  sampler.restore("epoch 4 consumed 0 of 10 seed 1");
  EXPECT_EQ(sampler.epoch(), 4);
  plain.restore("epoch 4 consumed 3 of 10 seed 1");
  EXPECT_EQ(plain.take(2, 0, 1), (Samples{3, 4}));
}

// The order is computed from counters. A known order is checked here, so that a change of it is
// noticed.
TEST(Sampler, TheOrderIsTheSameOnEveryMachine) {
  EXPECT_EQ(permutation(10, 7, 3), (Samples{4, 5, 1, 9, 6, 3, 2, 0, 8, 7}));
  EXPECT_NE(permutation(10, 7, 3), permutation(10, 7, 3 + (int64_t{1} << 32)));
}

}  // namespace
}  // namespace tutti
