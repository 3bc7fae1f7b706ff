// Ranks write data to shared memory for each other, either through the writer's cache or past it.
// The data is the same both ways. With kCalls calls both ways are used on every machine.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "tests/support/bulk.h"
#include "tests/support/ranks.h"
#include "tutti/core/communicator.h"
#include "tutti/kernels/destination_choice.h"

namespace tutti {
namespace {

constexpr int kCalls = 2 * (DestinationChoice::kFirstTrial + DestinationChoice::kTrial);

class LeftForOthers : public testing::TestWithParam<const char*> {
 protected:
  // Runs kCalls calls on each rank with `count` elements a rank. Each call has other values.
  static void run(int64_t count,
                  const std::function<void(Communicator&, std::vector<int32_t>& part,
                                           std::vector<int32_t>& whole, int call)>& one) {
    for (const int size : test::rank_counts({2, 3}))
      test::run_threads(
          size,
          [&](Communicator& comm) {
            std::vector<int32_t> part(static_cast<size_t>(count));
            std::vector<int32_t> whole(part.size() * static_cast<size_t>(size));
            for (int call = 0; call < kCalls; ++call) one(comm, part, whole, call);
          },
          [](Options& options) { options.backend = GetParam(); });
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, LeftForOthers, testing::Values("memory", "shm"),
                         [](const auto& info) { return std::string(info.param); });

int32_t first(int rank, int call) { return 1000 * call + 100'000 * rank; }

// Fills `values` with numbers from `from` on, which repeat after a prime count, so that no chunk
// boundary falls on a repetition. The values are a part of a longer array that starts at its index
// `begin`.
void fill(std::span<int32_t> values, int from, size_t begin = 0) {
  std::vector<int32_t> cycle(1'009);
  std::iota(cycle.begin(), cycle.end(), from);
  test::fill_cycle(values, cycle, static_cast<int64_t>(begin));
}

void expect_from(std::span<const int32_t> values, int from, int call, size_t begin = 0) {
  std::vector<int32_t> expected(values.size());
  fill(expected, from, begin);
  ASSERT_TRUE(test::same(std::as_bytes(values), std::as_bytes(std::span(expected))))
      << "call " << call;
}

TEST_P(LeftForOthers, GathersAreTheSame) {
  for (const int64_t count : {2'000, 20'000})
    run(count, [](Communicator& comm, auto& part, auto& whole, int call) {
      fill(part, first(comm.rank(), call));
      comm.allgather("x", part, whole).wait();
      const auto size = part.size();
      for (int rank = 0; rank < comm.size(); ++rank)
        expect_from(std::span(whole).subspan(static_cast<size_t>(rank) * size, size),
                    first(rank, call), call);
    });
}

TEST_P(LeftForOthers, BroadcastsAreTheSame) {
  for (const int64_t count : {2'000, 100'000})
    run(count, [](Communicator& comm, auto& part, auto&, int call) {
      const int root = call / 8 % comm.size();
      fill(part, first(comm.rank(), call));
      comm.broadcast_blocking("x", part, root);
      expect_from(part, first(root, call), call);
    });
}

TEST_P(LeftForOthers, WhatEachGetsIsTheSame) {
  for (const int64_t count : {2'000, 20'000})
    run(count, [](Communicator& comm, auto& part, auto& whole, int call) {
      const auto size = part.size();
      std::vector<int32_t> from_all(whole.size());
      fill(whole, first(comm.rank(), call));
      comm.alltoall_blocking("x", whole, from_all);
      const size_t begin = static_cast<size_t>(comm.rank()) * size;
      for (int rank = 0; rank < comm.size(); ++rank)
        expect_from(std::span(from_all).subspan(static_cast<size_t>(rank) * size, size),
                    first(rank, call), call, begin);
      comm.scatter("y", whole, part, 1).wait();
      expect_from(part, first(1, call), call, begin);
      comm.reduce_scatter("z", whole, part, {.op = ReduceOp::min}).wait();
      expect_from(part, first(0, call), call, begin);
    });
}

TEST_P(LeftForOthers, ReductionsAreTheSame) {
  // The smallest count goes in one shot, the others in two with chunks that are not full.
  for (const int64_t count : {2'000, 10'000, 40'000})
    run(count, [](Communicator& comm, auto& part, auto&, int call) {
      for (const bool is_named : {false, true}) {
        fill(part, first(comm.rank(), call));
        if (is_named)
          comm.allreduce("x", part, ReduceOp::max).wait();
        else
          comm.allreduce_blocking("x", TensorView(part), ReduceOp::max);
        expect_from(part, first(comm.size() - 1, call), call);
      }
    });
}

TEST_P(LeftForOthers, WhatOneSendsIsTheSame) {
  for (const int64_t count : {2'000, 100'000})
    run(count, [](Communicator& comm, auto& part, auto& whole, int call) {
      fill(part, first(comm.rank(), call));
      auto sent =
          comm.send("from " + std::to_string(comm.rank()), part, (comm.rank() + 1) % comm.size());
      const int left = (comm.rank() + comm.size() - 1) % comm.size();
      const auto got = std::span(whole).first(part.size());
      comm.recv("from " + std::to_string(left), TensorView(got), left).wait();
      expect_from(got, first(left, call), call);
      sent.wait();
    });
}

}  // namespace
}  // namespace tutti
