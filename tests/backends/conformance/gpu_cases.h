#pragma once

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "tests/support/gpu.h"
#include "tests/support/ranks.h"

// Cases that every backend with support for GPU memory must pass.

namespace tutti::test {

template <class T>
std::vector<T> numbers(size_t count, int start) {
  std::vector<T> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<T>(start + static_cast<int>(i % 7));
  return values;
}

/// Runs steps until the plan is replayed, with tensors of two types in one bucket.
inline void check_steps(Communicator& comm, Gpu& gpu, bool at_once) {
  const int size = comm.size();
  for (int step = 0; step < 12; ++step) {
    const auto a = gpu.make(numbers<float>(1000, comm.rank() + step));
    const auto b = gpu.make(numbers<double>(333, comm.rank() + 2 * step));
    ReduceOptions options{.op = ReduceOp::sum, .wire = DataType::f32};
    auto first = comm.allreduce("a", gpu.view(a), options);
    auto second = comm.allreduce("b", gpu.view(b), options);
    first.wait_on(gpu.stream());
    second.wait_on(gpu.stream());
    const int ranks = size * (size - 1) / 2;
    const auto seen_a = at_once ? gpu.read_at_once<float>(a) : gpu.read<float>(a);
    for (size_t i = 0; i < seen_a.size(); ++i)
      ASSERT_EQ(seen_a[i], static_cast<float>(ranks + size * (step + static_cast<int>(i % 7))));
    const auto seen_b = gpu.read<double>(b);
    for (size_t i = 0; i < seen_b.size(); ++i)
      ASSERT_EQ(seen_b[i], ranks + size * (2 * step + static_cast<int>(i % 7)));
    first.wait();
    second.wait();
  }
  EXPECT_GT(comm.statistics().replayed_buckets, 0u);
}

inline void check_kinds(Communicator& comm, Gpu& gpu) {
  const int rank = comm.rank(), size = comm.size();
  const auto mine = gpu.make(std::vector<int32_t>(static_cast<size_t>(rank) + 2, rank + 1));
  std::vector<int32_t> all;
  for (int r = 0; r < size; ++r) all.insert(all.end(), static_cast<size_t>(r) + 2, r + 1);
  EXPECT_EQ(gpu.read<int32_t>(comm.allgather("allgather", gpu.view(mine)).output()), all);

  const auto word = gpu.make(std::vector<float>(100, static_cast<float>(rank)));
  comm.broadcast("broadcast", gpu.view(word), size - 1).wait();
  EXPECT_EQ(gpu.read<float>(word), std::vector<float>(100, static_cast<float>(size - 1)));

  // A mean over values that differ between ranks.
  const auto rows = gpu.make(numbers<float>(static_cast<size_t>(3 * size), 2 * rank));
  const auto part = comm.reduce_scatter("reduce_scatter", gpu.view(rows)).output();
  const auto whole = numbers<float>(static_cast<size_t>(3 * size), size - 1);
  EXPECT_EQ(gpu.read<float>(part),
            std::vector<float>(whole.begin() + 3 * rank, whole.begin() + 3 * rank + 3));

  const auto out = gpu.make(std::vector<int64_t>(static_cast<size_t>(size), rank));
  std::vector<int64_t> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  EXPECT_EQ(gpu.read<int64_t>(comm.alltoall("alltoall", gpu.view(out)).output()), ranks);
  if (rank > 1 || size < 2) return;
  const auto message = gpu.make(std::vector<double>(50, rank));
  (rank == 0 ? comm.send("pair", gpu.view(message), 1) : comm.recv("pair", gpu.view(message), 0))
      .wait();
  EXPECT_EQ(gpu.read<double>(message), std::vector<double>(50, 0));
}

}  // namespace tutti::test
