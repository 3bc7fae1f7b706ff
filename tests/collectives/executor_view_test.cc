// Reductions that read the other ranks' data in its owner's memory.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/collectives/executor_fixture.h"

namespace tutti {
namespace {

using test::Job;

constexpr uint64_t kSeed = 20261121;

struct Count {
  int64_t views = 0, returns = 0;
};

// Runs an allreduce of four ranks and checks its results. Returns how often one rank read in
// another's memory, and how often a result was written back to where its elements had been read.
Count count_of(const char* algorithm, bool in_place = true) {
  constexpr int64_t kCount = 500;
  Job job(4, kSeed);
  Job::Setting setting;
  setting.counts = {kCount};
  setting.in_place = in_place;
  job.prepare(setting);
  job.run(find_algorithm(CollectiveKind::allreduce, algorithm), {256, 2});
  for (int rank = 0; rank < 4; ++rank)
    for (int64_t i = 0; i < kCount; ++i)
      EXPECT_EQ(job.members[static_cast<size_t>(rank)].result(i), test::sum_of_samples(4, i))
          << algorithm << " on rank " << rank;
  EXPECT_FALSE(job.network.has_tampering) << algorithm;
  return {job.network.views, job.network.returns};
}

TEST(ExecutorViews, ReducesWhatStaysAtItsSender) {
  for (const auto* name : {"two_shot", "ring", "halving_doubling", "hierarchical"})
    EXPECT_GT(count_of(name).views, 0) << name;
}

// All ranks overwrite the data that they send, so no rank could begin to read in another's memory.
TEST(ExecutorViews, NoneOfWhatReductionsOverwrite) {
  for (const auto* name : {"one_shot", "recursive_doubling"})
    EXPECT_EQ(count_of(name).views, 0) << name;
}

// The owner of a chunk writes the result into the memory of all ranks.
TEST(ExecutorViews, ResultsAreWrittenWhereTheirElementsWere) {
  EXPECT_GT(count_of("two_shot").returns, 0);
  EXPECT_EQ(count_of("two_shot", false).returns, 0);  // the results have other addresses
  EXPECT_EQ(count_of("ring").returns, 0);             // the results come from another neighbour
}

TEST(ExecutorViews, AViewWhoseSenderTookItBackFailsTheOperation) {
  Job job(2, kSeed);
  Job::Setting setting;
  setting.counts = {500};
  job.prepare(setting);
  job.network.take_back_one();
  job.start(find_algorithm(CollectiveKind::allreduce, "two_shot"), {64, 2});
  const auto has_failed = [](auto state) { return state == OperationState::failed; };
  for (int i = 0; i < 1000 && std::ranges::none_of(job.states, has_failed); ++i) {
    job.network.step();
    for (size_t rank = 0; rank < 2; ++rank)
      if (job.states[rank] == OperationState::pending)
        job.states[rank] = job.operations[rank]->advance();
  }
  ASSERT_TRUE(std::ranges::any_of(job.states, has_failed));
  for (auto& operation : job.operations) operation->cancel();
  EXPECT_TRUE(job.finish());
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(job.network.transport(rank).tickets(), 0u);
}

}  // namespace
}  // namespace tutti
