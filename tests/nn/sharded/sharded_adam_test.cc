// Adam fused with the reduction is compared with an allreduce followed by an ordinary Adam step.

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tutti/adapters/nn/kernels/optimizer_steps.h"
#include "tutti/adapters/nn/sharded.h"

namespace tutti::nn {
namespace {

using Counts = std::vector<int64_t>;
const Counts kShort = {3, 70'000, 1, 200'001, 40};
// These arrays are larger than any cache, so updated parameters are written around the caches.
const Counts kLong = {5, 4'500'001, 3'999'997};

std::string name_of(size_t i) { return "w" + std::to_string(i); }

std::vector<float> gradient_of(int rank, int step, size_t i, int64_t count) {
  std::mt19937 random(static_cast<unsigned>(rank * 1000 + step * 10) + static_cast<unsigned>(i));
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (auto& value : values) value = normal(random);
  return values;
}

struct Variant {
  bool decoupled = false;
  int root = 0;  // all ranks start with the parameters of this rank
};

// The learning rate changes in each step.
double rate_of(int step) { return 0.01 / (1 + step); }

void equals_separate_steps(Communicator& comm, const Counts& counts, int steps,
                           const Variant& variant = {}) {
  std::vector<GradientArena::Array> arrays;
  for (size_t i = 0; i < counts.size(); ++i) arrays.push_back({name_of(i), {counts[i]}});
  const AdamOptions options{.learning_rate = rate_of(0), .weight_decay = 0.1};
  ShardedAdam sharded(comm, arrays, options, variant.decoupled);
  std::vector<std::vector<float>> values, first, second;
  for (size_t i = 0; i < arrays.size(); ++i) {
    values.push_back(gradient_of(77, 0, i, counts[i]));
    first.emplace_back(values.back().size());
    second.emplace_back(values.back().size());
    auto start = sharded.value(name_of(i));
    std::ranges::fill(start, static_cast<float>(comm.rank()));
    if (comm.rank() == variant.root) std::ranges::copy(values.back(), start.begin());
  }
  sharded.broadcast(variant.root);
  for (int step = 0; step < steps; ++step) {
    if (step > 0) sharded.set_learning_rate(rate_of(step));
    for (size_t i = arrays.size(); i-- > 0;) {
      std::ranges::copy(gradient_of(comm.rank(), step, i, counts[i]),
                        sharded.gradient(name_of(i)).begin());
      sharded.ready(name_of(i));
    }
    sharded.step();
    for (size_t i = 0; i < arrays.size(); ++i) {
      auto mean = gradient_of(comm.rank(), step, i, counts[i]);
      comm.allreduce("mean", mean).wait();
      adam_step({.learning_rate = rate_of(step),
                 .weight_decay = 0.1,
                 .decoupled = variant.decoupled,
                 .step = step + 1},
                values[i], mean, first[i], second[i]);
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

// A job continues from the state that another job saved, with other ranks that own other elements.
TEST(ShardedAdam, StateGoesOnOnAnyNumberOfRanks) {
  const AdamOptions options{.learning_rate = 0.01};
  std::vector<NamedState> saved;
  std::vector<std::vector<float>> values(kShort.size()), later(kShort.size());
  const auto train = [&](Communicator& comm, int from, int to, bool loads) {
    std::vector<GradientArena::Array> arrays;
    for (size_t i = 0; i < kShort.size(); ++i) arrays.push_back({name_of(i), {kShort[i]}});
    ShardedAdam sharded(comm, arrays, options);
    for (size_t i = 0; loads && i < kShort.size(); ++i)
      std::ranges::copy(values[i], sharded.value(name_of(i)).begin());
    if (loads) sharded.restore(saved);
    for (int step = from; step < to; ++step) {
      for (size_t i = 0; i < kShort.size(); ++i) {
        // The gradients are equal on all ranks, so that the number of ranks makes no difference.
        std::ranges::copy(gradient_of(0, step, i, kShort[i]), sharded.gradient(name_of(i)).begin());
        sharded.ready(name_of(i));
      }
      sharded.step();
    }
    const auto state = sharded.state();
    EXPECT_EQ(sharded.steps(), to);
    comm.barrier_blocking();
    if (comm.rank() != 0) return;
    saved = state;
    for (size_t i = 0; i < kShort.size(); ++i) {
      const auto value = sharded.value(name_of(i));
      later[i].assign(value.begin(), value.end());
    }
  };
  test::run_threads(
      2, [&](Communicator& comm) { train(comm, 0, 5, false); }, in_rank_order);
  const auto whole_values = later;
  const auto whole_state = saved;
  test::run_threads(
      4, [&](Communicator& comm) { train(comm, 0, 2, false); }, in_rank_order);
  values = later;
  test::run_threads(
      2, [&](Communicator& comm) { train(comm, 2, 5, true); }, in_rank_order);
  EXPECT_EQ(later, whole_values);
  ASSERT_EQ(saved.size(), 2 * kShort.size() + 1);
  for (size_t i = 0; i < saved.size(); ++i)
    EXPECT_EQ(std::memcmp(saved[i].tensor.data(), whole_state[i].tensor.data(),
                          static_cast<size_t>(saved[i].tensor.bytes())),
              0)
        << saved[i].name;
  test::run_threads(1, [&](Communicator& comm) {
    ShardedAdam sharded(comm, {{"other", {3}}}, options);
    test::expect_refused("ShardedAdam: no \"first_moment.other\" of 3 f32 in the state to restore",
                         [&] { sharded.restore(saved); });
    EXPECT_EQ(sharded.steps(), 0);
  });
}

TEST(ShardedAdam, EqualsAllreduceAndStepToTheBit) {
  for (const int size : test::rank_counts({1, 2, 3}))
    test::run_threads(size, nine_short_steps, in_rank_order);
}

TEST(ShardedAdam, WithDecoupledDecayFromAnyRanksParameters) {
  for (const int root : {1, 2})
    test::run_threads(
        3,
        [&](Communicator& comm) {
          equals_separate_steps(comm, kShort, 3, {.decoupled = true, .root = root});
        },
        in_rank_order);
}

TEST(ShardedAdam, OverProcesses) { test::run_processes(2, nine_short_steps, in_rank_order); }

TEST(ShardedAdam, MoreThanCachesHold) { test::run_processes(2, two_long_steps, in_rank_order); }

TEST(ShardedAdam, WithoutSharedMemory) {
  test::run_processes(2, nine_short_steps, [](Options& options) {
    options.determinism = Determinism::rank_order;
    options.backend = "tcp";
  });
}

// Only the rank that owns a share has its moments, so no other rank can step in its place.
void is_refused_beside_a_rank_that_has_joined(Communicator& comm) {
  ShardedAdam sharded(comm, {{"a", {50'000}}}, {.learning_rate = 0.1});
  const auto step = [&] {
    std::ranges::fill(sharded.gradient("a"), static_cast<float>(1 + comm.rank()));
    sharded.ready("a");
    sharded.step();
  };
  step();
  const std::vector<float> before(sharded.value("a").begin(), sharded.value("a").end());
  auto joined = comm.rank() == 2 ? comm.join() : Work();
  if (comm.rank() != 2) {
    test::expect_error(ErrorCode::mismatch,
                       "the optimizer's step that is fused with this allreduce cannot run while "
                       "rank 2 has joined (is out of data), which would miss the update; give "
                       "every rank the same number of steps. Nothing was changed.",
                       step);
    joined = comm.join();
  }
  joined.wait();
  EXPECT_TRUE(std::ranges::equal(before, sharded.value("a")));
}
TEST(ShardedAdam, IsRefusedBesideARankThatHasJoined) {
  test::run_threads(3, is_refused_beside_a_rank_that_has_joined);
  test::run_processes(3, is_refused_beside_a_rank_that_has_joined);
  test::run_processes(3, is_refused_beside_a_rank_that_has_joined,
                      [](Options& options) { options.backend = "tcp"; });
}

TEST(ShardedAdam, WrongUseIsRefused) {
  test::run_threads(2, [](Communicator& comm) {
    using test::expect_refused;
    expect_refused("\"a\" is f16; ShardedAdam updates f32", [&] {
      ShardedAdam(comm, {{"a", {4}, DataType::f16}}, {});
    });
    ShardedAdam sharded(comm, {{"a", {4}}}, {});
    expect_refused("\"b\" is not an array of this GradientArena", [&] { sharded.value("b"); });
    expect_refused("\"a\" was never declared ready in this step on rank ", [&] { sharded.step(); });
    EXPECT_EQ(sharded.steps(), 0);
    GradientArena plain(comm, {{"a", {4}}});
    expect_refused("\"a\" has no value in GradientArena", [&] { plain.value("a"); });
  });
}

}  // namespace
}  // namespace tutti::nn
