#pragma once

// Ranks of two levels, nccl within a host and tcp between hosts, and the collectives that all of
// them run.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/backends/nccl/nccl_ranks.h"

namespace tutti::test {

// The host of each rank.
using Layout = std::vector<int>;
inline const Layout kTwoByTwo{0, 0, 1, 1}, kMixed{0, 1, 1, 0, 2, 2}, kThreeByOne{0, 1, 2},
    kTwoByThree{0, 0, 0, 1, 1, 1};

inline void run_levels(const Layout& layout, const RankFunction& body, const Tune& more = {}) {
  run_nccl(static_cast<int>(layout.size()), body, [&](Options& options) {
    options.backend = "nccl+tcp";
    options.host = fmt::format("host {}", layout[static_cast<size_t>(options.rank)]);
    if (more) more(options);
  });
}

inline double value_of(int rank, int64_t i) { return rank + 1 + static_cast<double>(i % 3); }

inline double reduced(int size, ReduceOp op, int64_t i) {
  double result = value_of(0, i);
  for (int rank = 1; rank < size; ++rank) {
    const double next = value_of(rank, i);
    result = op == ReduceOp::min       ? std::min(result, next)
             : op == ReduceOp::max     ? std::max(result, next)
             : op == ReduceOp::product ? result * next
                                       : result + next;
  }
  return op == ReduceOp::average ? result / size : result;
}

inline void every_op(Communicator& comm, DataType dtype) {
  UserStream stream;
  for (const auto op : {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max}) {
    for (const int64_t count : {1, 3, 64, 1001}) {
      const auto name = fmt::format("{} {} {}", to_string(dtype), to_string(op), count);
      SCOPED_TRACE(name);
      const auto tensor = stream.make(
          Shape{count}, dtype, [&, rank = comm.rank()](int64_t i) { return value_of(rank, i); });
      comm.allreduce(name, stream.view(tensor), op).wait_on(stream.get());
      stream.expect(tensor, [&](int64_t i) {
        const double expected = reduced(comm.size(), op, i);
        return is_float(dtype) ? expected : std::trunc(expected);
      });
      if (testing::Test::HasFailure()) return;
    }
  }
}

}  // namespace tutti::test
