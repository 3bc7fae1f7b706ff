#include "tools/bench/report/figures.h"

#include <gtest/gtest.h>

#include "tools/bench/cases/session.h"

namespace tutti::bench {
namespace {

TEST(Figures, Median) {
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({9, 1, 4}), 4);
  EXPECT_EQ(median({9, 1, 4, 2}), 3);
}

TEST(Figures, PercentileIsTheNearestRank) {
  std::vector<double> hundred;
  for (int i = 1; i <= 100; ++i) hundred.push_back(i);
  EXPECT_EQ(percentile(hundred, 0), 1);
  EXPECT_EQ(percentile(hundred, 50), 50);
  EXPECT_EQ(percentile(hundred, 99), 99);
  EXPECT_EQ(percentile(hundred, 99.9), 100);
  EXPECT_EQ(percentile(hundred, 100), 100);
  EXPECT_EQ(percentile({7}, 50), 7);
}

TEST(Figures, IterationsFillTheRepetition) {
  EXPECT_EQ(iterations_for(0.02, 1, 0.001), 20);
  EXPECT_EQ(iterations_for(0.02, 10, 0.001), 200);
  EXPECT_EQ(iterations_for(0.02, 1, 5), 1);
  EXPECT_EQ(iterations_for(0.02, 1, 1e-9), 1'000'000);
  EXPECT_EQ(iterations_for(0.02, 1, 0), 1'000'000);
}

TEST(Figures, BusBandwidthFactors) {
  EXPECT_DOUBLE_EQ(bus_factor("allreduce", 2), 1);
  EXPECT_DOUBLE_EQ(bus_factor("allreduce", 4), 1.5);
  for (const char* name : {"allgather", "reduce_scatter", "alltoall", "gather", "scatter"})
    EXPECT_DOUBLE_EQ(bus_factor(name, 4), 0.75) << name;
  for (const char* name : {"broadcast", "reduce", "sendrecv"})
    EXPECT_DOUBLE_EQ(bus_factor(name, 4), 1) << name;
}

TEST(Figures, ATimingIsMedianLeastAndLargest) {
  const auto timing = summarize({5, 1, 3}, 8);
  EXPECT_EQ(timing.median_us, 3);
  EXPECT_EQ(timing.min_us, 1);
  EXPECT_EQ(timing.max_us, 5);
  EXPECT_EQ(timing.repetitions, 3);
  EXPECT_EQ(timing.iterations, 8);
}

}  // namespace
}  // namespace tutti::bench
