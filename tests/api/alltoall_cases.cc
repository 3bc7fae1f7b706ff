// Alltoall and reduce_scatter: each rank gets its own part.
#include <fmt/format.h>

#include <numeric>

#include "tests/api/case.h"
#include "tutti/base/text.h"

namespace tutti::test {
namespace {

// Rank `from` gives rank `to` rows(from, to) rows of two elements, which hold 10 from + to.
void check_rows(Communicator& comm, DataType dtype, const std::function<int64_t(int, int)>& rows) {
  std::vector<double> out, in;
  std::vector<int64_t> splits, received;
  for (int peer = 0; peer < comm.size(); ++peer) {
    splits.push_back(rows(comm.rank(), peer));
    received.push_back(rows(peer, comm.rank()));
    out.insert(out.end(), static_cast<size_t>(2 * splits.back()), 10 * comm.rank() + peer);
    in.insert(in.end(), static_cast<size_t>(2 * received.back()), 10 * peer + comm.rank());
  }
  const auto input = make_tensor(Shape{static_cast<int64_t>(out.size()) / 2, 2}, dtype,
                                 [&](int64_t i) { return out[static_cast<size_t>(i)]; });
  auto work = comm.alltoall("alltoall", input, splits);
  const auto output = work.output();
  ASSERT_EQ(output.shape(), (Shape{static_cast<int64_t>(in.size()) / 2, 2}));
  expect_elements(output, [&](int64_t i) { return in[static_cast<size_t>(i)]; });
  EXPECT_EQ(work.received_counts(), received);
}

void check_splits(Communicator& comm) {
  for (const auto dtype : numbers())
    check_rows(comm, dtype, [](int from, int to) { return from + 2 * to + 1; });
}

void check_equal_split(Communicator& comm) {
  for (const auto dtype : numbers()) {
    const auto input = make_tensor(Shape{3 * comm.size(), 2}, dtype,
                                   [&](int64_t i) { return 10 * comm.rank() + i / 6; });
    const auto output = comm.alltoall("equal", input).output();
    ASSERT_EQ(output.shape(), input.shape());
    expect_elements(output, [&](int64_t i) { return 10 * (i / 6) + comm.rank(); });
  }
}

TUTTI_CASE(Alltoall, Splits) { check_splits(comm); }
TUTTI_CASE(Alltoall, EqualSplit) { check_equal_split(comm); }
TUTTI_CASE(Alltoall, ProcessSets) {
  in_process_set(comm, [](Communicator& set) {
    check_splits(set);
    check_equal_split(set);
  });
}

TUTTI_CASE(Alltoall, ZeroSplits) {
  check_rows(comm, DataType::f32, [](int from, int to) { return (from + to) % 2; });
}
TUTTI_CASE(Alltoall, OneRankSends) {
  check_rows(comm, DataType::f32, [](int from, int to) { return from == 1 ? to + 1 : 0; });
}
TUTTI_CASE(Alltoall, OneRankReceives) {
  check_rows(comm, DataType::f32, [](int from, int to) { return to == 1 ? from + 1 : 0; });
}
TUTTI_CASE(Alltoall, OneRankSendsNothing) {
  check_rows(comm, DataType::f32, [](int from, int to) { return from == 1 ? 0 : from + to + 1; });
}
TUTTI_CASE(Alltoall, OneRankReceivesNothing) {
  check_rows(comm, DataType::f32, [](int from, int to) { return to == 1 ? 0 : from + to + 1; });
}
TUTTI_CASE(Alltoall, Empty) {
  check_rows(comm, DataType::f32, [](int, int) { return 0; });
}

TUTTI_CASE(Alltoall, DtypeError) {
  std::vector<float> values(static_cast<size_t>(comm.size()), 1);
  const auto dtype = comm.rank() == 0 ? DataType::f32 : DataType::i32;
  const int64_t rows = comm.size();
  expect_mismatch(
      comm,
      fmt::format(
          "\"x\": {}; all ranks must submit the same dtype. Nothing was changed.",
          rank_zero_differs(comm, fmt::format("f32[{}]", rows), fmt::format("i32[{}]", rows))),
      [&] { comm.alltoall("x", TensorView(values.data(), Shape{rows}, dtype)).wait(); });
}

TUTTI_CASE(Alltoall, RankError) {
  const int64_t rows = comm.size();
  std::vector<float> values(static_cast<size_t>(rows) * 2, 1);
  const auto shape = comm.rank() == 0 ? Shape{rows} : Shape{rows, 2};
  expect_mismatch(
      comm,
      fmt::format(
          "\"x\": {}; all ranks must submit the same shape, except for the first extent. Nothing "
          "was changed.",
          rank_zero_differs(comm, fmt::format("f32[{}]", rows), fmt::format("f32[{},2]", rows))),
      [&] { comm.alltoall("x", TensorView(values.data(), shape, DataType::f32)).wait(); });
}

// Expects that a rank refuses its own wrong call immediately, before any rank is asked.
void expect_refused(Communicator& comm, const std::string& line,
                    const std::function<void()>& body) {
  const auto error = error_of(body);
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_EQ(error.what(), line);
  expect_still_works(comm);
}

TUTTI_CASE(Alltoall, LengthError) {
  std::vector<float> values(static_cast<size_t>(comm.size()) + 1, 1);
  expect_refused(comm,
                 fmt::format("\"x\": {} rows cannot be split equally among {} ranks; give splits",
                             comm.size() + 1, comm.size()),
                 [&] { return comm.alltoall("x", values); });
}

TUTTI_CASE(Alltoall, SplitsErrors) {
  std::vector<float> values(static_cast<size_t>(comm.size()), 1);
  std::vector<int64_t> splits(static_cast<size_t>(comm.size()), 1);
  splits.back() = 5;
  expect_refused(comm,
                 fmt::format("\"x\": splits [{}] do not add up to the {} rows of rank {}",
                             fmt::join(splits, ","), comm.size(), comm.rank()),
                 [&] { return comm.alltoall("x", values, splits); });
  splits.back() = -1;
  expect_refused(comm,
                 fmt::format("\"x\": rows [{}] hold a negative count", fmt::join(splits, ",")),
                 [&] { return comm.alltoall("x", values, splits); });
  splits.push_back(1);
  expect_refused(comm,
                 fmt::format("\"x\": {} row counts were given for {}", comm.size() + 1,
                             format_count(comm.size(), "rank")),
                 [&] { return comm.alltoall("x", values, splits); });
}

TUTTI_CASE(Alltoall, ScalarError) {
  double value = 1;
  expect_refused(comm, "\"x\": a scalar has no rows to send; give it a first dimension",
                 [&] { return comm.alltoall("x", TensorView(&value, Shape{}, DataType::f64)); });
}

// --- reduce_scatter -----------------------------------------------------------------------------

// Row j of every rank's input holds j % 5 + rank. This rank's share begins after the shares of the
// lower ranks. The lowest ranks get the remainder.
struct Scattered {
  int64_t rows, first, own;

  explicit Scattered(const Communicator& comm, int64_t all) : rows(all) {
    const int64_t each = all / comm.size(), more = all % comm.size();
    first = each * comm.rank() + std::min<int64_t>(comm.rank(), more);
    own = each + (comm.rank() < more ? 1 : 0);
  }
  Tensor input(const Communicator& comm, DataType dtype) const {
    return make_tensor(Shape{rows, 2}, dtype, [&](int64_t i) { return i / 2 % 5 + comm.rank(); });
  }
  // Expects the sum or mean of the ranks' inputs, scaled before and after as `options` say.
  void expect(const Tensor& part, int size, const ReduceOptions& options) const {
    ASSERT_EQ(part.shape(), (Shape{own, 2}));
    const int divisor = options.op == ReduceOp::average ? size : 1;
    const auto dtype = part.dtype();
    expect_elements(part, [&](int64_t i) {
      double sum = 0;
      for (int rank = 0; rank < size; ++rank)
        sum += scaled(dtype, static_cast<double>((first + i / 2) % 5 + rank), options.prescale);
      return scaled(dtype, sum / divisor, options.postscale);
    });
  }
};

void check_scattered(Communicator& comm, const std::vector<DataType>& dtypes,
                     const ReduceOptions& options) {
  for (const auto dtype : dtypes)
    for (const int64_t rows : {0, 1, 17}) {
      const Scattered whole(comm, rows);
      const auto input = whole.input(comm, dtype);
      const auto part = comm.reduce_scatter("reduce_scatter", input, options).output();
      whole.expect(part, comm.size(), options);
    }
}

const ReduceOptions kSum = {.op = ReduceOp::sum};
// The mean j % 5 + (size - 1) / 2 is exact in every float. Integers are divided toward zero.
const ReduceOptions kAverage = {};

TUTTI_CASE(ReduceScatter, Sum) { check_scattered(comm, numbers(), kSum); }
TUTTI_CASE(ReduceScatter, Average) { check_scattered(comm, numbers(), kAverage); }
TUTTI_CASE(ReduceScatter, Prescale) {
  for (const auto dtype : numbers())
    check_scattered(comm, {dtype}, {.op = ReduceOp::sum, .prescale = random_factor(dtype)});
}
TUTTI_CASE(ReduceScatter, Postscale) {
  for (const auto dtype : numbers())
    check_scattered(comm, {dtype}, {.op = ReduceOp::sum, .postscale = random_factor(dtype)});
}
TUTTI_CASE(ReduceScatter, ProcessSets) {
  in_process_set(comm, [](Communicator& set) { check_scattered(set, numbers(), kSum); });
}

TUTTI_CASE(ReduceScatter, RowsOfTheCallersChoice) {
  // Rank r gets 2 r rows.
  std::vector<int64_t> rows;
  for (int rank = 0; rank < comm.size(); ++rank) rows.push_back(2 * rank);
  const auto all = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  const auto input = make_tensor(Shape{all}, DataType::i32, [](int64_t i) { return i; });
  const auto part = comm.reduce_scatter("chosen", input, kSum, rows).output();
  ASSERT_EQ(part.count(), 2 * comm.rank());
  const int64_t first = comm.rank() * (comm.rank() - 1);
  expect_elements(part, [&](int64_t i) { return (first + i) * comm.size(); });
}

TUTTI_CASE(ReduceScatter, ScalarError) {
  double value = 1;
  expect_refused(comm, "\"x\": a scalar has no rows to scatter; give it a first dimension", [&] {
    return comm.reduce_scatter("x", TensorView(&value, Shape{}, DataType::f64));
  });
}

TUTTI_CASE(ReduceScatter, AsyncFused) {
  std::vector<Tensor> inputs;
  std::vector<Work> works;
  for (int t = 0; t < 20; ++t)
    inputs.push_back(Scattered(comm, t).input(comm, numbers()[static_cast<size_t>(t) % 12]));
  for (int t = 0; t < 20; ++t)
    works.push_back(
        comm.reduce_scatter(fmt::format("fused {}", t), inputs[static_cast<size_t>(t)], kSum));
  for (int t = 19; t >= 0; --t)
    Scattered(comm, t).expect(works[static_cast<size_t>(t)].output(), comm.size(), kSum);
}

TUTTI_CASE(ReduceScatter, ShapeError) {
  std::vector<float> values(5, 1);
  const int64_t rows = comm.rank() == 0 ? 4 : 5;
  expect_mismatch(
      comm,
      fmt::format("\"x\": {}; all ranks must submit the same shape. Nothing was changed.",
                  rank_zero_differs(comm, "f32[4]", "f32[5]")),
      [&] {
        comm.reduce_scatter("x", TensorView(values.data(), Shape{rows}, DataType::f32)).wait();
      });
}

TUTTI_CASE(ReduceScatter, DtypeError) {
  std::vector<float> values(5, 1);
  const auto dtype = comm.rank() == 0 ? DataType::f32 : DataType::i32;
  expect_mismatch(
      comm,
      fmt::format("\"x\": {}; all ranks must submit the same dtype. Nothing was changed.",
                  rank_zero_differs(comm, "f32[5]", "i32[5]")),
      [&] { comm.reduce_scatter("x", TensorView(values.data(), Shape{5}, dtype)).wait(); });
}

TUTTI_CASE(ReduceScatter, DuplicateName) {
  std::vector<float> values(5, 1);
  expect_duplicate_refused(
      comm, [&](const std::string& name) { return comm.reduce_scatter(name, values); });
}

void check_grouped(Communicator& comm, const std::vector<DataType>& dtypes,
                   const ReduceOptions& options) {
  std::vector<Tensor> inputs;
  std::vector<NamedTensor> members;
  for (size_t i = 0; i < dtypes.size(); ++i) {
    inputs.push_back(Scattered(comm, static_cast<int64_t>(i) + 3).input(comm, dtypes[i]));
    members.push_back({fmt::format("member {}", i), inputs.back()});
  }
  auto work = comm.grouped_reduce_scatter("group", members, options);
  for (size_t i = 0; i < dtypes.size(); ++i)
    Scattered(comm, static_cast<int64_t>(i) + 3).expect(work.output(i), comm.size(), options);
}

TUTTI_CASE(GroupedReduceScatter, Sum) { check_grouped(comm, numbers(), kSum); }
TUTTI_CASE(GroupedReduceScatter, Average) { check_grouped(comm, numbers(), kAverage); }
TUTTI_CASE(GroupedReduceScatter, Prescale) {
  check_grouped(comm, numbers(), {.op = ReduceOp::sum, .prescale = random_factor(DataType::f32)});
}
TUTTI_CASE(GroupedReduceScatter, Postscale) {
  check_grouped(comm, numbers(), {.op = ReduceOp::sum, .postscale = random_factor(DataType::f32)});
}
TUTTI_CASE(GroupedReduceScatter, ProcessSets) {
  in_process_set(comm, [](Communicator& set) { check_grouped(set, numbers(), kSum); });
}
TUTTI_CASE(GroupedReduceScatter, ScalarError) {
  double value = 1;
  std::vector<float> vector(3, 1);
  const std::vector<NamedTensor> members = {{"vector", vector},
                                            {"scalar", TensorView(&value, Shape{}, DataType::f64)}};
  expect_refused(comm, "\"scalar\": a scalar has no rows to scatter; give it a first dimension",
                 [&] { return comm.grouped_reduce_scatter("group", members); });
}

}  // namespace
}  // namespace tutti::test
