#pragma once

// Steps with several kinds of operations that are nearly the same. Every rank shuffles the order.
// Tensors are missing, new, reshaped or doubled, on all ranks or on one. Whatever the plan does,
// every result is correct or the correct error, and refused inputs are unchanged to the byte.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <iterator>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "tests/support/bulk.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tutti/collectives/schedule.h"
#include "tutti/core/agreement/request.h"
#include "tutti/core/communicator.h"

namespace tutti::test {

inline constexpr int kTensors = 20, kSteps = 16;

// The event of a step. It is the same on all ranks because they draw the same random numbers.
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

// How a tensor is used: by one of the kinds, as a pair (sent to the next rank and received from the
// previous one), or in a group with a second tensor.
enum class Way {
  allreduce,
  allgather,
  reduce_scatter,
  broadcast,
  alltoall,
  scatter,
  gather,
  reduce,
  pair,
  grouped_sums,
  grouped_gathers
};

// Every other tensor is an allreduce.
inline Way way_of(int tensor) {
  constexpr Way kWays[] = {Way::allgather,    Way::reduce_scatter, Way::broadcast, Way::alltoall,
                           Way::scatter,      Way::gather,         Way::reduce,    Way::pair,
                           Way::grouped_sums, Way::grouped_gathers};
  constexpr int kCount = std::size(kWays);
  return tensor % 2 == 0 ? Way::allreduce : kWays[tensor / 2 % kCount];
}

struct Gradient {
  std::string name;
  Way way = Way::allreduce;
  int root = 0;
  std::vector<float> values, before;
  std::vector<float> second;  // of a group: the other member; of a pair: the received values
  Shape shape;
  Shape shape_of_root;
  Work work, received;
};

// Returns one of eleven values, which repeat.
inline float value_of(int rank, int step, int64_t i) {
  return static_cast<float>(rank * 3 + step + static_cast<int>(i % 11));
}
template <class At>
void append(std::vector<float>& values, Range range, At&& at) {
  std::vector<float> cycle;
  for (int64_t i = 0; i < 11; ++i) cycle.push_back(at(i));
  const size_t before = values.size();
  values.resize(before + static_cast<size_t>(range.count));
  fill_cycle(std::span(values).subspan(before), cycle, range.begin);
}

// Returns this rank's rows of an even division, in elements.
inline Range share_of(const Shape& shape, int rank, int size) {
  Range share;
  for (int r = 0; r < rank; ++r) share.begin += even_share(shape[0], r, size) * shape.row_count();
  share.count = even_share(shape[0], rank, size) * shape.row_count();
  return share;
}

inline void submit(Communicator& comm, Gradient& gradient) {
  const TensorView view(gradient.values.data(), gradient.shape, DataType::f32);
  const TensorView second(gradient.second.data(), gradient.shape, DataType::f32);
  const std::vector<NamedTensor> members{{gradient.name + ".a", view},
                                         {gradient.name + ".b", second}};
  const int rank = comm.rank(), size = comm.size();
  auto& work = gradient.work;
  const auto& name = gradient.name;
  switch (gradient.way) {
    case Way::allreduce:
      work = comm.allreduce(name, view, ReduceOp::sum);
      break;
    case Way::allgather:
      work = comm.allgather(name, view);
      break;
    case Way::reduce_scatter:
      work = comm.reduce_scatter(name, view, {.op = ReduceOp::sum});
      break;
    case Way::broadcast:
      work = comm.broadcast(name, view, gradient.root);
      break;
    case Way::alltoall: {
      std::vector<int64_t> splits;
      for (int to = 0; to < size; ++to) splits.push_back(even_share(gradient.shape[0], to, size));
      work = comm.alltoall(name, view, splits);
      break;
    }
    case Way::scatter:
      work = comm.scatter(name, view, gradient.root);
      break;
    case Way::gather:
      work = comm.gather(name, view, gradient.root);
      break;
    case Way::reduce:
      work = comm.reduce(name, view, view, gradient.root);
      break;
    case Way::pair:
      work = comm.send(name + " of " + std::to_string(rank), view, (rank + 1) % size);
      gradient.received = comm.recv(name + " of " + std::to_string((rank + size - 1) % size),
                                    second, (rank + size - 1) % size);
      break;
    case Way::grouped_sums:
      work = comm.grouped_allreduce(name, members, {.op = ReduceOp::sum});
      break;
    case Way::grouped_gathers:
      work = comm.grouped_allgather(name, members);
      break;
  }
}

inline std::vector<float> made_by(Gradient& gradient, size_t index = 0) {
  const Tensor output = gradient.work.output(index);
  const auto values = output.span<float>();
  return {values.begin(), values.end()};
}

// Returns this rank's result of a finished operation.
inline std::vector<float> result_of(Communicator& comm, Gradient& gradient) {
  switch (gradient.way) {
    case Way::allgather:
    case Way::reduce_scatter:
    case Way::alltoall:
    case Way::scatter:
      return made_by(gradient);
    case Way::gather:
      return comm.rank() == gradient.root ? made_by(gradient) : std::vector<float>();
    case Way::pair:
      return gradient.second;
    case Way::grouped_sums:
      EXPECT_TRUE(same(gradient.values, gradient.second));
      return gradient.values;
    case Way::grouped_gathers:
      EXPECT_TRUE(same(made_by(gradient, 0), made_by(gradient, 1)));
      return made_by(gradient);
    default:
      return gradient.values;
  }
}

inline std::vector<float> expected_of(const Gradient& gradient, int rank, int size, int step) {
  const int64_t count = gradient.shape.count();
  std::vector<float> expected;
  const auto give = [&](int from, Range range) {
    append(expected, range, [&](int64_t i) { return value_of(from, step, i); });
  };
  const auto give_sums = [&](Range range) {
    append(expected, range, [&](int64_t i) {
      float sum = 0;
      for (int r = 0; r < size; ++r) sum += value_of(r, step, i);
      return sum;
    });
  };
  const Range all{0, count};
  switch (gradient.way) {
    case Way::allreduce:
    case Way::grouped_sums:
      give_sums(all);
      break;
    case Way::allgather:
    case Way::grouped_gathers:
      for (int r = 0; r < size; ++r) give(r, all);
      break;
    case Way::reduce_scatter:
      give_sums(share_of(gradient.shape, rank, size));
      break;
    case Way::broadcast:
      give(gradient.root, all);
      break;
    case Way::alltoall:
      for (int r = 0; r < size; ++r) give(r, share_of(gradient.shape, rank, size));
      break;
    case Way::scatter:
      give(gradient.root, share_of(gradient.shape_of_root, rank, size));
      break;
    case Way::gather:
      for (int r = 0; r < size && rank == gradient.root; ++r) give(r, all);
      break;
    case Way::reduce:
      if (rank == gradient.root)
        give_sums(all);
      else
        give(rank, all);
      break;
    case Way::pair:
      give((rank + size - 1) % size, all);
      break;
  }
  return expected;
}

// Waits for `work` and returns whether it failed because the ranks disagree.
inline bool is_refused(Work& work) {
  try {
    work.wait();
    return false;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::mismatch) << error.what();
    return true;
  }
}

// For each step: true when the rank that doubles a tensor has submitted both. Until then the others
// hold their part back, so that the first one cannot complete.
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
      gradient.way = way_of(t);
      gradient.root = t % size;
      const int64_t count = 6 * (1 + t * t * 2);
      gradient.shape = gradient.shape_of_root = Shape{count};
      const bool by_one = event.kind == Event::reshaped_by_one && t == event.tensor;
      const Shape other{count / 3, 3};
      if (t == event.tensor && (event.kind == Event::reshaped || (by_one && mine)))
        gradient.shape = other;
      if (t == event.tensor &&
          (event.kind == Event::reshaped || (by_one && event.rank == gradient.root)))
        gradient.shape_of_root = other;
      // The two ranks of a pair may use different shapes, but must agree on the number of elements.
      if (gradient.way == Way::pair && by_one && mine) gradient.shape = Shape{count / 3};
      append(gradient.values, {0, gradient.shape.count()},
             [&](int64_t i) { return value_of(comm.rank(), step, i); });
      gradient.before = gradient.values;
      gradient.second = gradient.way == Way::pair
                            ? std::vector<float>(gradient.values.size(), -1.0f)
                            : gradient.values;
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
      submit(comm, gradient);
      if (!doubles || !mine) continue;
      expect_error(ErrorCode::duplicate_name, "", [&] { submit(comm, gradient); });
      done = true;
    }
    for (auto& gradient : gradients) {
      SCOPED_TRACE(
          fmt::format("seed {} step {} {} rank {}", seed, step, gradient.name, comm.rank()));
      const bool odd =
          event.kind == Event::reshaped_by_one && gradient.name == fmt::format("t{}", event.tensor);
      // Only the root of a scatter gives the shape.
      const bool refused = odd && gradient.way != Way::scatter;
      if (gradient.way == Way::pair) {
        const auto next_of = [&](int rank) { return (rank + 1) % size; };
        const bool receives_odd = odd && (mine || next_of(event.rank) == comm.rank());
        ASSERT_EQ(is_refused(gradient.received), receives_odd);
        ASSERT_EQ(is_refused(gradient.work), odd && (mine || next_of(comm.rank()) == event.rank));
        ASSERT_TRUE(same(gradient.values, gradient.before));
        if (receives_odd) {
          ASSERT_TRUE(same(gradient.second, std::vector<float>(gradient.second.size(), -1.0f)));
        } else {
          ASSERT_TRUE(same(gradient.second, expected_of(gradient, comm.rank(), size, step)));
        }
        continue;
      }
      ASSERT_EQ(is_refused(gradient.work), refused);
      if (!refused) {
        ASSERT_TRUE(
            same(result_of(comm, gradient), expected_of(gradient, comm.rank(), size, step)));
        continue;
      }
      ASSERT_TRUE(same(gradient.values, gradient.before));
      ASSERT_TRUE(same(gradient.second, gradient.before));
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
