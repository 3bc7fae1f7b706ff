#include "tutti/kernels/destination_choice.h"

#include <gtest/gtest.h>

namespace tutti::test {
namespace {

/// A machine with given costs for writing a chunk to the cache and to memory.
struct Machine {
  float cache = 0, memory = 0;

  /// Runs chunks; returns how many were written to memory.
  int run(DestinationChoice& choice, int chunks) const {
    int streamed = 0;
    for (int i = 0; i < chunks; ++i) {
      const auto place = choice.next();
      streamed += place == Destination::memory;
      choice.measured(place, place == Destination::memory ? memory : cache);
    }
    return streamed;
  }
};

constexpr int kRound = DestinationChoice::kBetween + DestinationChoice::kTrial;

TEST(DestinationChoice, BeginsInTheCacheAndTriesMemoryEarly) {
  DestinationChoice choice;
  EXPECT_EQ((Machine{0.1F, 0.2F}.run(choice, DestinationChoice::kFirstTrial - 1)), 0);
  EXPECT_EQ((Machine{0.1F, 0.2F}.run(choice, DestinationChoice::kTrial)),
            DestinationChoice::kTrial);
}

TEST(DestinationChoice, StaysWhereItIsCheapestButForTrials) {
  DestinationChoice choice;
  const int streamed = Machine{0.1F, 0.2F}.run(choice, 10 * kRound);
  EXPECT_GE(streamed, 9 * DestinationChoice::kTrial);
  EXPECT_LE(streamed, 11 * DestinationChoice::kTrial);
}

TEST(DestinationChoice, FollowsTheMachineWithinARound) {
  DestinationChoice choice;
  const Machine near{0.05F, 0.15F}, far{0.6F, 0.15F};
  near.run(choice, 3 * kRound);
  // The destination in use is measured all the time, so a higher cost shows immediately.
  EXPECT_GE(far.run(choice, 100), 90);
  far.run(choice, 3 * kRound);
  // The destination not in use is tried now and then.
  near.run(choice, kRound);
  EXPECT_LE(near.run(choice, 100), DestinationChoice::kTrial);
}

TEST(DestinationChoice, ASmallDifferenceChangesNothing) {
  DestinationChoice choice;
  EXPECT_LE((Machine{0.10F, 0.09F}.run(choice, 10 * kRound)), 11 * DestinationChoice::kTrial);
}

TEST(DestinationChoice, OneDisturbedChunkCountsForNothing) {
  DestinationChoice choice;
  const Machine machine{0.1F, 0.2F};
  machine.run(choice, 100);
  for (int i = 0; i < 10; ++i) {
    choice.measured(Destination::cache, 50);
    EXPECT_EQ(machine.run(choice, 20), 0);
  }
}

TEST(DestinationChoice, WhatNobodyMeasuredIsNotChosen) {
  DestinationChoice choice;
  for (int i = 0; i < 3 * kRound; ++i) {
    const auto place = choice.next();
    if (place == Destination::cache) choice.measured(place, 0.1F);
  }
  EXPECT_EQ(choice.next(), Destination::cache);
}

}  // namespace
}  // namespace tutti::test
