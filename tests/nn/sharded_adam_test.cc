// Adam fused with the reduction against an allreduce followed by an ordinary Adam step.

#include "tutti/adapters/nn/sharded_adam.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/support/ranks.h"

namespace tutti::nn {
namespace {

using Counts = std::vector<int64_t>;
const Counts kShort = {3, 70'000, 1, 200'001, 40};
// More than any cache holds: updated parameters go past them.
const Counts kLong = {5, 4'500'001, 3'999'997};

std::string name_of(size_t i) { return "w" + std::to_string(i); }

std::vector<float> gradient_of(int rank, int step, size_t i, int64_t count) {
  std::mt19937 random(static_cast<unsigned>(rank * 1000 + step * 10) + static_cast<unsigned>(i));
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (auto& value : values) value = normal(random);
  return values;
}

void equals_separate_steps(Communicator& comm, const Counts& counts, int steps) {
  std::vector<GradientArena::Array> arrays;
  for (size_t i = 0; i < counts.size(); ++i) arrays.push_back({name_of(i), {counts[i]}});
  const AdamOptions options{.learning_rate = 0.01, .weight_decay = 0.1};
  ShardedAdam sharded(comm, arrays, options);
  std::vector<std::vector<float>> values, first, second;
  for (size_t i = 0; i < arrays.size(); ++i) {
    values.push_back(gradient_of(77, 0, i, counts[i]));
    first.emplace_back(values.back().size());
    second.emplace_back(values.back().size());
    if (comm.rank() == 0) std::ranges::copy(values.back(), sharded.value(name_of(i)).begin());
  }
  sharded.broadcast();
  for (int step = 0; step < steps; ++step) {
    for (size_t i = arrays.size(); i-- > 0;) {
      std::ranges::copy(gradient_of(comm.rank(), step, i, counts[i]),
                        sharded.gradient(name_of(i)).begin());
      sharded.ready(name_of(i));
    }
    sharded.step();
    for (size_t i = 0; i < arrays.size(); ++i) {
      auto mean = gradient_of(comm.rank(), step, i, counts[i]);
      comm.allreduce("mean", mean).wait();
      adam_step({.learning_rate = 0.01, .weight_decay = 0.1, .step = step + 1}, values[i], mean,
                first[i], second[i]);
      const auto got = sharded.value(name_of(i));
      for (size_t k = 0; k < got.size(); ++k)
        ASSERT_EQ(values[i][k], got[k])
            << "step " << step << " array " << i << " element " << k << " rank " << comm.rank();
    }
  }
  EXPECT_EQ(sharded.steps(), steps);
}

void nine_short_steps(Communicator& comm) { equals_separate_steps(comm, kShort, 9); }
void two_long_steps(Communicator& comm) { equals_separate_steps(comm, kLong, 2); }

void in_rank_order(Options& options) { options.determinism = Determinism::rank_order; }

TEST(ShardedAdam, EqualsAllreduceAndStepToTheBit) {
  for (const int size : {1, 2, 3}) test::run_threads(size, nine_short_steps, in_rank_order);
}

TEST(ShardedAdam, OverProcesses) { test::run_processes(2, nine_short_steps, in_rank_order); }

TEST(ShardedAdam, MoreThanCachesHold) { test::run_processes(2, two_long_steps, in_rank_order); }

TEST(ShardedAdam, WithoutSharedMemory) {
  test::run_processes(2, nine_short_steps, [](Options& options) {
    options.determinism = Determinism::rank_order;
    options.backend = "tcp";
  });
}

TEST(ShardedAdam, WrongUseIsRefused) {
  test::run_threads(2, [](Communicator& comm) {
    EXPECT_THROW(ShardedAdam(comm, {{"a", {4}, DataType::f16}}, {}), Error);
    ShardedAdam sharded(comm, {{"a", {4}}}, {});
    EXPECT_THROW(sharded.value("b"), Error);
    EXPECT_THROW(sharded.step(), Error);
    GradientArena plain(comm, {{"a", {4}}});
    EXPECT_THROW(plain.value("a"), Error);
  });
}

}  // namespace
}  // namespace tutti::nn
