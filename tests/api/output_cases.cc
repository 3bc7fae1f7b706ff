// Results in the caller's device memory, in all the forms that host memory allows. Some backends
// work on the device; all others go through host memory.

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "tests/api/case.h"
#include "tests/support/expect_error.h"

namespace tutti::test {
namespace {

constexpr int64_t kRowWidth = 3;

double row_value(int rank, int64_t row) { return static_cast<double>(rank * 64 + row % 61); }
double sum_of_row(int size, int64_t row) {
  double sum = 0;
  for (int rank = 0; rank < size; ++rank) sum += row_value(rank, row);
  return sum;
}

using RowFormula = std::function<double(int64_t row)>;

/// Rows in the memory of the tests' device. The host reads them once a Work is done.
class DeviceRows {
 public:
  DeviceRows(int64_t rows, const RowFormula& row)
      : tensor_(make_tensor(Shape{rows, kRowWidth}, DataType::f32,
                            [&](int64_t i) { return row(i / kRowWidth); })) {}
  explicit DeviceRows(int64_t rows) : DeviceRows(rows, [](int64_t) { return -1; }) {}

  /// Returns the rows [begin, begin + count).
  TensorView at(int64_t begin, int64_t count) const {
    return {tensor_.data() + begin * kRowWidth * size_of(DataType::f32), Shape{count, kRowWidth},
            DataType::f32, Device{DeviceKind::fake, 0}};
  }
  TensorView operator()() const { return at(0, tensor_.shape()[0]); }
  void expect(const RowFormula& row) const { expect(0, tensor_.shape()[0], row); }
  void expect(int64_t begin, int64_t count, const RowFormula& row) const {
    const auto part = at(begin, count);
    expect_elements({part.data(), part.shape(), part.dtype()},
                    [&](int64_t i) { return row(i / kRowWidth); });
  }

 private:
  Tensor tensor_;
};

TUTTI_CASE(Outputs, OfEveryKindOnADevice) {
  use_fake_device();
  const int rank = comm.rank(), size = comm.size(), root = size - 1;
  const ReduceOptions sum{.op = ReduceOp::sum};
  for (const int64_t rows : {1, 700}) {
    const int64_t all = size * rows;
    const auto name = [&](const char* kind) { return fmt::format("{} {}", kind, rows); };
    const RowFormula mine = [&](int64_t row) { return row_value(rank, row); };
    const RowFormula joined = [&](int64_t row) {
      return row_value(static_cast<int>(row / rows), row % rows);
    };
    for (int step = 0; step < 3; ++step) {
      SCOPED_TRACE(fmt::format("{} rows, step {}", rows, step));
      const DeviceRows part(rows, mine), whole(all, mine);
      DeviceRows out(rows), all_out(all);
      comm.allreduce(name("allreduce"), part(), out(), sum).wait();
      out.expect([&](int64_t row) { return sum_of_row(size, row); });
      comm.broadcast(name("broadcast"), part(), out(), root).wait();
      out.expect([&](int64_t row) { return row_value(root, row); });
      comm.reduce(name("reduce"), part(), out(), root).wait();
      out.expect(
          [&](int64_t row) { return rank == root ? sum_of_row(size, row) : row_value(root, row); });
      comm.allgather(name("allgather"), part(), all_out()).wait();
      all_out.expect(joined);
      comm.reduce_scatter(name("reduce_scatter"), whole(), out(), sum).wait();
      out.expect([&](int64_t row) { return sum_of_row(size, rank * rows + row); });
      comm.alltoall(name("alltoall"), whole(), all_out(), {}).wait();
      all_out.expect([&](int64_t row) {
        return row_value(static_cast<int>(row / rows), rank * rows + row % rows);
      });
      DeviceRows gathered(all);
      comm.gather(name("gather"), part(), gathered(), root).wait();
      gathered.expect([&](int64_t row) { return rank == root ? joined(row) : -1; });
      comm.scatter(name("scatter"), whole(), out(), root).wait();
      out.expect([&](int64_t row) { return row_value(root, rank * rows + row); });
      part.expect(mine);
      whole.expect(mine);
    }
  }
}

// Each rank has another number of rows, and one has none.
TUTTI_CASE(Outputs, OfUnequalPartsOnADevice) {
  use_fake_device();
  const int rank = comm.rank(), size = comm.size();
  std::vector<int64_t> rows;
  for (int64_t other = 0; other < size; ++other) rows.push_back(2 * other);
  const int64_t all = size * (size - 1), before = rank * (rank - 1), own = 2 * rank;
  const DeviceRows whole(all, [&](int64_t row) { return row_value(rank, row); });
  const DeviceRows scattered(own), exchanged(own * size), joined(all);
  comm.reduce_scatter("reduce_scatter", whole(), scattered(), {.op = ReduceOp::sum}, rows).wait();
  scattered.expect([&](int64_t row) { return sum_of_row(size, before + row); });
  comm.alltoall("alltoall", whole(), exchanged(), rows).wait();
  exchanged.expect([&](int64_t row) {
    return row_value(static_cast<int>(row / std::max<int64_t>(own, 1)), before + row % own);
  });
  comm.allgather("allgather", whole.at(before, own), joined()).wait();
  int owner = 0;
  joined.expect([&](int64_t row) {
    owner = row == 0 ? 0 : owner;
    while (row >= int64_t{owner} * (owner + 1)) ++owner;
    return row_value(owner, row);
  });
}

TUTTI_CASE(Outputs, InPlaceOnADevice) {
  use_fake_device();
  const int rank = comm.rank(), size = comm.size();
  for (const int64_t rows : {2, 700}) {
    const auto name = [&](const char* kind) { return fmt::format("{} {}", kind, rows); };
    const RowFormula mine = [&](int64_t row) { return row_value(rank, row); };
    const DeviceRows scattered(size * rows, mine), gathered(size * rows, mine);
    comm.reduce_scatter(name("reduce_scatter"), scattered(), scattered.at(rank * rows, rows),
                        {.op = ReduceOp::sum})
        .wait();
    scattered.expect(rank * rows, rows,
                     [&](int64_t row) { return sum_of_row(size, rank * rows + row); });
    comm.allgather(name("allgather"), gathered.at(rank * rows, rows), gathered()).wait();
    gathered.expect([&](int64_t row) { return row_value(static_cast<int>(row / rows), row); });
  }
  const DeviceRows whole(2 * size);
  test::expect_refused("input and output share memory; give two tensors, or this rank's part of it",
                       [&] { return comm.reduce_scatter("x", whole(), whole.at(1, 2), {}); });
  const std::string shared = "input and output share memory on fake:0; give two tensors there";
  test::expect_refused(shared, [&] { return comm.alltoall("x", whole(), whole(), {}); });
  test::expect_refused(shared, [&] { return comm.gather("x", whole.at(0, 2), whole(), rank); });
  expect_still_works(comm);
}

}  // namespace
}  // namespace tutti::test
