#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "tests/backends/conformance/user_stream.h"
#include "tests/support/ranks.h"
#include "tutti/kernels/convert.h"

// Communicators over the nccl backend, on the fake device and the fake NCCL.

namespace tutti::test {

inline void over_nccl(Options& options) {
  options.backend = "nccl";
  options.backend_library = TUTTI_FAKE_NCCL;
}

inline void run_nccl(int size, const RankFunction& body, const Tune& more = {}) {
  run_threads(
      size, body,
      [&](Options& options) {
        over_nccl(options);
        if (more) more(options);
      },
      60);
}

/// Returns the sum of rank + 1 over all ranks.
inline double rank_sum(int size) { return size * (size + 1) / 2; }

/// A training loop whose host never waits within a step: buckets of two types are scaled, cast and
/// replayed. `submitted` runs when a step is on the stream. With `waits_at_once` the stream waits
/// for each result before it makes the next.
inline void train(Communicator& comm, bool waits_at_once,
                  const std::function<void()>& submitted = {}) {
  constexpr int kTensors = 12, kSteps = 25;
  UserStream stream;
  std::vector<Tensor> tensors;
  for (int t = 0; t < kTensors; ++t)
    tensors.emplace_back(Shape{50 + 37 * t}, t % 3 == 0 ? DataType::f64 : DataType::f32, kFake);
  std::vector<Work> works;
  for (int step = 0; step < kSteps; ++step) {
    for (const auto& tensor : tensors) {
      stream.fill(tensor, [=, rank = comm.rank()](int64_t i) {
        return (rank + 1) * 2 + static_cast<double>(i % 5 + step);
      });
      works.push_back(comm.allreduce(
          fmt::format("t{}", &tensor - tensors.data()), stream.view(tensor),
          {.op = ReduceOp::average, .prescale = 0.5, .postscale = 4.0, .wire = DataType::f32}));
      if (waits_at_once) works.back().wait_on(stream.get());
    }
    for (size_t t = 0; t < kTensors; ++t) {
      works[works.size() - kTensors + t].wait_on(stream.get());
      device().host_function(stream.get(), [step, size = comm.size(), tensor = tensors[t]] {
        double value = 0;
        cast(tensor.dtype(), tensor.data() + 7 * size_of(tensor.dtype()), DataType::f64,
             reinterpret_cast<std::byte*>(&value), 1);
        if (value != 2.0 * (size + 1 + 2 + step)) ADD_FAILURE() << "step " << step << ": " << value;
      });
    }
    if (submitted) submitted();
    // Buckets overlap: the last one may be over first.
    for (size_t t = 0; t < kTensors; ++t) works[works.size() - kTensors + t].wait();
  }
  for (auto& work : works) work.wait();
  EXPECT_GE(comm.statistics().plans_locked, 1u);
  EXPECT_GT(comm.statistics().replayed_buckets, 0u);
  // A plan that has both sides of a wait in one bucket is mended once.
  EXPECT_LE(comm.statistics().vetoed_buckets, waits_at_once ? 2u : 0u);
  comm.barrier("end").wait();
}

/// Ranks leave the plan in every way while others are buckets ahead on their streams.
inline void leave_the_plan(Communicator& comm) {
  UserStream stream;
  constexpr int kTensors = 8;
  const int size = comm.size();
  const auto one_step = [&](int step, int extra, int skip) {
    std::vector<Tensor> tensors;
    std::vector<Work> works;
    std::vector<int> order(kTensors);
    std::iota(order.begin(), order.end(), 0);
    if (skip >= 0) std::rotate(order.begin(), order.begin() + skip, order.end());
    for (const int t : order) {
      const int64_t count = 40 + (t == extra ? 8 : 0);
      tensors.push_back(stream.make(Shape{count}, DataType::f32, [=, rank = comm.rank()](int64_t) {
        return rank + 1 + step + t;
      }));
      works.push_back(
          comm.allreduce(fmt::format("v{}", t), stream.view(tensors.back()), ReduceOp::sum));
    }
    for (size_t i = 0; i < works.size(); ++i) {
      works[i].wait();
      stream.expect(tensors[i], [&](int64_t) { return rank_sum(size) + size * (step + order[i]); });
    }
  };
  int step = 0;
  for (; step < 8; ++step) one_step(step, -1, -1);
  for (int round = 0; round < size; ++round) {
    one_step(step++, 1 + round, -1);                       // another shape
    for (int i = 0; i < 6; ++i) one_step(step++, -1, -1);  // a new plan
    one_step(step++, -1, comm.rank() == round ? 5 : -1);   // another order
    for (int i = 0; i < 6; ++i) one_step(step++, -1, -1);
  }
  EXPECT_GT(comm.statistics().vetoed_buckets, 0u);
  comm.barrier("end").wait();
}

}  // namespace tutti::test
