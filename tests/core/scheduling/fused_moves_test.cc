// Allgathers share a bucket, and so do reduce_scatters. Each gets its own result, whatever its
// type, rows and output, both negotiated and in a plan.

#include <gtest/gtest.h>

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/ranks.h"
#include "tutti/core/communicator.h"

namespace tutti {
namespace {

class FusedMoves : public testing::TestWithParam<const char*> {
 protected:
  static void run(int size, const test::RankFunction& body, int64_t fusion_bytes = 4 << 20) {
    test::run_threads(size, body, [&](Options& options) {
      options.backend = GetParam();
      options.fusion_bytes = fusion_bytes;
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, FusedMoves, testing::Values("memory", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

template <class T>
T value(int rank, int step, int tensor, int64_t i) {
  return static_cast<T>(rank * 20 + step % 5 + tensor + i % 3);
}

// One allgather or reduce_scatter of rows of kRow elements, and its expected result.
template <class T>
class Move {
 public:
  // Rank r gives `rows + r` rows to an allgather, and gets that many from a reduce_scatter.
  Move(Communicator& comm, CollectiveKind kind, int tensor, int step, int64_t rows, bool own_output,
       ReduceOp op = ReduceOp::sum, std::optional<DataType> wire = {})
      : comm_(comm), kind_(kind), op_(op), tensor_(tensor), step_(step) {
    for (int rank = 0; rank < comm.size(); ++rank) rows_.push_back(rows + rank);
    const int64_t mine = rows_[static_cast<size_t>(comm.rank())];
    const int64_t given = gathers() ? mine : all();
    const int64_t got = gathers() ? all() : mine;
    for (int64_t i = 0; i < given * kRow; ++i)
      input_.push_back(value<T>(comm.rank(), step, tensor, i));
    output_.assign(static_cast<size_t>(got * kRow), T{});
    const auto view = TensorView(input_).reshaped(Shape{given, kRow});
    const auto into = TensorView(output_).reshaped(Shape{got, kRow});
    const auto name = "t" + std::to_string(tensor);
    const ReduceOptions options{.op = op, .wire = wire};
    if (gathers())
      work_ = own_output ? comm.allgather(name, view, into) : comm.allgather(name, view);
    else
      work_ = own_output ? comm.reduce_scatter(name, view, into, options, rows_)
                         : comm.reduce_scatter(name, view, options, rows_);
    made_ = !own_output;
  }

  void check() {
    work_.wait();
    std::vector<T> got = output_;
    if (made_) {
      const auto made = work_.output();
      const auto values = made.template span<T>();
      got.assign(values.begin(), values.end());
    }
    std::vector<T> wanted;
    const auto own = static_cast<size_t>(comm_.rank());
    int64_t begin = 0;
    for (size_t rank = 0; rank < rows_.size(); begin += rows_[rank++] * kRow) {
      if (!gathers() && rank != own) continue;
      for (int64_t i = 0; i < rows_[rank] * kRow; ++i)
        wanted.push_back(gathers() ? value<T>(static_cast<int>(rank), step_, tensor_, i)
                                   : reduced(begin + i));
    }
    EXPECT_EQ(got, wanted) << "tensor " << tensor_ << " step " << step_ << " rank " << own;
    EXPECT_TRUE(!gathers() || work_.received_counts() == rows_);
  }

 private:
  static constexpr int64_t kRow = 3;
  bool gathers() const { return kind_ == CollectiveKind::allgather; }
  int64_t all() const {
    int64_t sum = 0;
    for (const int64_t rows : rows_) sum += rows;
    return sum;
  }
  T reduced(int64_t i) const {
    T sum{};
    for (int rank = 0; rank < comm_.size(); ++rank) sum += value<T>(rank, step_, tensor_, i);
    return op_ == ReduceOp::average ? sum / static_cast<T>(comm_.size()) : sum;
  }

  Communicator& comm_;
  const CollectiveKind kind_;
  const ReduceOp op_;
  const int tensor_, step_;
  std::vector<int64_t> rows_;
  std::vector<T> input_, output_;
  bool made_ = false;
  Work work_;
};

constexpr auto kGather = CollectiveKind::allgather;
constexpr auto kReduce = CollectiveKind::reduce_scatter;

TEST_P(FusedMoves, EachGetsItsOwn) {
  for (const int size : {1, 2, 3})
    run(size, [](Communicator& comm) {
      const auto step = [&](int number) {
        std::deque<Move<float>> floats;
        std::deque<Move<double>> doubles;
        std::deque<Move<int32_t>> integers;
        for (int t = 0; t < 6; ++t) {
          const auto kind = t % 2 == 0 ? kGather : kReduce;
          floats.emplace_back(comm, kind, t, number, 3 + 4 * t, t < 3);
          integers.emplace_back(comm, kind, 10 + t, number, 9 - t, t % 4 < 2);
        }
        // Sent as floats, beside tensors of floats.
        doubles.emplace_back(comm, kReduce, 20, number, 5, true, ReduceOp::sum, DataType::f32);
        floats.emplace_back(comm, kReduce, 21, number, 0, true);
        floats.emplace_back(comm, kReduce, 22, number, 4, true, ReduceOp::average);
        for (auto& move : floats) move.check();
        for (auto& move : doubles) move.check();
        for (auto& move : integers) move.check();
      };
      for (int number = 0; number < 4; ++number) step(number);
      const auto before = comm.statistics();
      EXPECT_EQ(before.plans_locked, 1u);
      for (int number = 4; number < 12; ++number) step(number);
      const auto after = comm.statistics();
      EXPECT_EQ(after.negotiation_messages, before.negotiation_messages);
      EXPECT_EQ(after.vetoed_buckets, 0u);
      // Five buckets for each step: the allgathers and the sums of each type, and the average.
      EXPECT_EQ(after.replayed_buckets - before.replayed_buckets, 8u * 5);
    });
}

// The members of a group are answered together, so they share a bucket before there is a plan.
TEST_P(FusedMoves, GroupsShareABucketAtOnce) {
  run(2, [](Communicator& comm) {
    std::vector<std::vector<float>> values(5,
                                           std::vector<float>(8, static_cast<float>(comm.rank())));
    std::vector<NamedTensor> tensors;
    for (size_t i = 0; i < values.size(); ++i)
      tensors.push_back({"t" + std::to_string(i), TensorView(values[i])});
    auto gathered = comm.grouped_allgather("gathers", tensors);
    for (size_t i = 0; i < values.size(); ++i) {
      const auto output = gathered.output(i);
      EXPECT_EQ(output.count(), 16);
      EXPECT_EQ(output.span<float>()[0], 0.0f);
      EXPECT_EQ(output.span<float>()[15], 1.0f);
    }
    EXPECT_EQ(comm.statistics().buckets, 1u);
    auto reduced = comm.grouped_reduce_scatter("sums", tensors, {.op = ReduceOp::sum});
    for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(reduced.output(i).span<float>()[3], 1.0f);
    EXPECT_EQ(comm.statistics().buckets, 2u);
  });
}

// A bucket has at most fusion_bytes bytes. A tensor of many bytes goes by itself.
TEST_P(FusedMoves, UpToTheThreshold) {
  run(
      2,
      [](Communicator& comm) {
        const auto step = [&](int number) {
          std::deque<Move<float>> moves;
          for (int t = 0; t < 80; ++t) moves.emplace_back(comm, kGather, t, number, 10, true);
          for (int t = 80; t < 84; ++t) moves.emplace_back(comm, kGather, t, number, 40, true);
          for (auto& move : moves) move.check();
        };
        for (int number = 0; number < 4; ++number) step(number);
        const auto before = comm.statistics();
        for (int number = 4; number < 10; ++number) step(number);
        // Each tensor has 252 bytes. The first bucket holds 16, a quarter of the limit's 64; the
        // next holds 64.
        EXPECT_EQ(comm.statistics().replayed_buckets - before.replayed_buckets, 6u * (2 + 4));
      },
      64 * 252 + 100);
}

// Each layer waits for its gathered tensors before it goes on. Nothing shares a bucket with a
// tensor that comes after the wait, and no plan is given up to learn that.
TEST_P(FusedMoves, WhatIsWaitedForIsAlone) {
  run(2, [](Communicator& comm) {
    const auto step = [&](int number) {
      for (int layer = 0; layer < 8; ++layer) {
        Move<float> first(comm, kGather, 3 * layer, number, 5, true);
        Move<float> second(comm, kGather, 3 * layer + 1, number, 5, true);
        first.check();
        second.check();
        Move<float> sums(comm, kReduce, 3 * layer + 2, number, 5, true);
        if (layer % 2 == 0) sums.check();
        if (layer % 2 != 0) {
          Move<float> more(comm, kReduce, 100 + layer, number, 5, true);
          sums.check();
          more.check();
        }
      }
    };
    for (int number = 0; number < 4; ++number) step(number);
    const auto before = comm.statistics();
    for (int number = 4; number < 20; ++number) step(number);
    const auto after = comm.statistics();
    EXPECT_EQ(after.plans_locked, 1u);
    EXPECT_EQ(after.vetoed_buckets, 0u);
    EXPECT_EQ(after.negotiation_messages, before.negotiation_messages);
    EXPECT_EQ(after.replayed_buckets - before.replayed_buckets, 16u * 8 * 2);
  });
}

}  // namespace
}  // namespace tutti
