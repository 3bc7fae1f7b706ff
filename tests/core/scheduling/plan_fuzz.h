#pragma once

// Steps of several kinds that are nearly alike: order shuffled on every rank, tensors missing, new,
// reshaped and doubled, on all ranks or on one. Whatever the plan makes of it, every result is
// right or the right error, and what was refused is unchanged to the byte.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "tests/support/ranks.h"
#include "tutti/core/agreement/request.h"
#include "tutti/core/communicator.h"

namespace tutti::test {

inline constexpr int kTensors = 10, kSteps = 16;

// What happens in a step, the same on all ranks because they draw the same numbers.
struct Event {
  enum Kind { nothing, missing, added, reshaped, reshaped_by_one, doubled_by_one, late, count };
  Kind kind = nothing;
  int tensor = 0;
  int rank = 0;
};

inline Event draw(std::mt19937_64& random, int size) {
  Event event;
  if (random() % 2 == 0) event.kind = static_cast<Event::Kind>(random() % Event::count);
  event.tensor = static_cast<int>(random() % kTensors);
  event.rank = static_cast<int>(random() % static_cast<uint64_t>(size));
  return event;
}

struct Gradient {
  std::string name;
  CollectiveKind kind = CollectiveKind::allreduce;
  int root = 0;
  std::vector<float> values, before;
  Shape shape;
  Work work;
};

inline float value_of(int rank, int step, int64_t i) {
  return static_cast<float>(rank * 3 + step + static_cast<int>(i % 11));
}

// Most are allreduces.
inline CollectiveKind kind_of(int tensor) {
  constexpr CollectiveKind kKinds[] = {CollectiveKind::allgather, CollectiveKind::reduce_scatter,
                                       CollectiveKind::broadcast};
  return tensor % 3 == 2 ? kKinds[tensor / 3 % 3] : CollectiveKind::allreduce;
}

inline Work submit(Communicator& comm, Gradient& gradient) {
  const TensorView view(gradient.values.data(), gradient.shape, DataType::f32);
  switch (gradient.kind) {
    case CollectiveKind::allgather:
      return comm.allgather(gradient.name, view);
    case CollectiveKind::reduce_scatter:
      return comm.reduce_scatter(gradient.name, view, {.op = ReduceOp::sum});
    case CollectiveKind::broadcast:
      return comm.broadcast(gradient.name, view, gradient.root);
    default:
      return comm.allreduce(gradient.name, view, ReduceOp::sum);
  }
}

inline std::vector<float> result_of(Gradient& gradient) {
  if (gradient.kind != CollectiveKind::allgather && gradient.kind != CollectiveKind::reduce_scatter)
    return gradient.values;
  const Tensor output = gradient.work.output();
  const auto values = output.span<float>();
  return {values.begin(), values.end()};
}

inline std::vector<float> expected_of(const Gradient& gradient, int rank, int size, int step) {
  const int64_t count = gradient.shape.count();
  std::vector<float> expected;
  int64_t begin = 0, end = count;
  if (gradient.kind == CollectiveKind::reduce_scatter) {
    for (int r = 0; r < rank; ++r)
      begin += even_share(gradient.shape[0], r, size) * gradient.shape.row_count();
    end = begin + even_share(gradient.shape[0], rank, size) * gradient.shape.row_count();
  }
  if (gradient.kind == CollectiveKind::allgather) {
    for (int r = 0; r < size; ++r)
      for (int64_t i = 0; i < count; ++i) expected.push_back(value_of(r, step, i));
    return expected;
  }
  for (int64_t i = begin; i < end; ++i) {
    float value = 0;
    for (int r = 0; r < size; ++r)
      if (gradient.kind != CollectiveKind::broadcast || r == gradient.root)
        value += value_of(r, step, i);
    expected.push_back(value);
  }
  return expected;
}

// By step: the rank that doubles a tensor has done so. Until then the others hold theirs back, so
// that the first cannot be over.
using Doubled = std::array<std::atomic<bool>, kSteps>;

inline void run_seed(Communicator& comm, uint64_t seed, Doubled& doubled) {
  std::mt19937_64 common(seed), own(seed * 31 + static_cast<uint64_t>(comm.rank()));
  const int size = comm.size();
  for (int step = 0; step < kSteps; ++step) {
    const Event event = draw(common, size);
    const bool mine = event.rank == comm.rank();
    std::vector<Gradient> gradients;
    for (int t = 0; t < kTensors + (event.kind == Event::added); ++t) {
      if (event.kind == Event::missing && t == event.tensor) continue;
      Gradient gradient;
      gradient.name = t < kTensors ? fmt::format("t{}", t) : fmt::format("new {}", step);
      gradient.kind = kind_of(t);
      gradient.root = t % size;
      const int64_t count = 6 * (1 + t * t * 7);
      gradient.shape = Shape{count};
      if (t == event.tensor &&
          (event.kind == Event::reshaped || (event.kind == Event::reshaped_by_one && mine)))
        gradient.shape = Shape{count / 3, 3};
      for (int64_t i = 0; i < count; ++i) gradient.values.push_back(value_of(comm.rank(), step, i));
      gradient.before = gradient.values;
      gradients.push_back(std::move(gradient));
    }
    std::shuffle(gradients.begin(), gradients.end(), own);
    if (event.kind == Event::late && mine)
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
    for (auto& gradient : gradients) {
      const bool doubles =
          event.kind == Event::doubled_by_one && gradient.name == fmt::format("t{}", event.tensor);
      auto& done = doubled[static_cast<size_t>(step)];
      while (doubles && !mine && !done) std::this_thread::yield();
      gradient.work = submit(comm, gradient);
      if (!doubles || !mine) continue;
      try {
        submit(comm, gradient);
        ADD_FAILURE() << "seed " << seed << ": a second submission was taken";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::duplicate_name) << error.what();
      }
      done = true;
    }
    for (auto& gradient : gradients) {
      const bool refused =
          event.kind == Event::reshaped_by_one && gradient.name == fmt::format("t{}", event.tensor);
      try {
        gradient.work.wait();
        ASSERT_FALSE(refused) << "seed " << seed << " step " << step << " " << gradient.name;
        ASSERT_EQ(result_of(gradient), expected_of(gradient, comm.rank(), size, step))
            << "seed " << seed << " step " << step << " " << gradient.name;
      } catch (const Error& error) {
        ASSERT_TRUE(refused) << "seed " << seed << " step " << step << ": " << error.what();
        ASSERT_EQ(error.code(), ErrorCode::mismatch);
        ASSERT_EQ(0, std::memcmp(gradient.values.data(), gradient.before.data(),
                                 gradient.values.size() * sizeof(float)));
      }
    }
  }
}

inline void run_seeds(uint64_t first, uint64_t count) {
  for (uint64_t seed = first; seed < first + count; ++seed) {
    Doubled doubled{};
    run_threads(
        seed % 3 == 0 ? 3 : 2, [&](Communicator& comm) { run_seed(comm, seed, doubled); },
        [seed](Options& options) {
          options.replay_after = 2;
          options.fusion_bytes = 4000 + 1000 * static_cast<int64_t>(seed % 7);
          options.partition_bytes = seed % 2 == 0 ? 3000 : 1 << 20;
          if (seed % 5 == 0) options.algorithms = "allreduce:0-inf=ring";
        });
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
}

}  // namespace tutti::test
