// Allgather, broadcast, reduce, gather and scatter: the data comes from whole ranks or goes to
// them.
#include <fmt/format.h>

#include "tests/api/case.h"
#include "tests/support/expect_error.h"

namespace tutti::test {
namespace {

// Rank r gives rows(r) rows of three elements that hold r.
Tensor rows_of(int rank, int64_t rows, DataType dtype) {
  return make_tensor(Shape{rows, 3}, dtype, [=](int64_t) { return rank; });
}

// Expects that `gathered` holds, for each rank r in turn, rows(r) rows of the value r.
void expect_gathered(const Tensor& gathered, int size, const std::function<int64_t(int)>& rows) {
  std::vector<double> expected;
  for (int rank = 0; rank < size; ++rank)
    expected.insert(expected.end(), static_cast<size_t>(rows(rank) * 3), rank);
  ASSERT_EQ(gathered.shape(), (Shape{static_cast<int64_t>(expected.size()) / 3, 3}));
  expect_elements(gathered, [&](int64_t i) { return expected[static_cast<size_t>(i)]; });
}

std::vector<DataType> all_dtypes() {
  auto all = numbers();
  all.push_back(DataType::boolean);
  all.push_back(DataType::raw);
  return all;
}

void check_equal(Communicator& comm) {
  for_each_tensor(numbers(), [&](const std::string& name, Shape shape, DataType dtype) {
    const auto tensor = make_tensor(shape, dtype, [&](int64_t) { return comm.rank(); });
    const auto all = comm.allgather(name, tensor).output();
    ASSERT_EQ(all.shape(), shape.with_rows(shape[0] * comm.size()));
    expect_elements(all, [&](int64_t i) { return static_cast<double>(i / shape.count()); });
  });
}

void check_variable(Communicator& comm) {
  const auto rows = [](int rank) { return int64_t{rank % 3} * 2; };  // rank 0 has none
  for (const auto dtype : numbers()) {
    const auto input = rows_of(comm.rank(), rows(comm.rank()), dtype);
    auto work = comm.allgather("variable", input);
    expect_gathered(work.output(), comm.size(), rows);
    const auto received = work.received_counts();
    ASSERT_EQ(received.size(), static_cast<size_t>(comm.size()));
    for (int rank = 0; rank < comm.size(); ++rank)
      EXPECT_EQ(received[static_cast<size_t>(rank)], rows(rank));
  }
}

TUTTI_CASE(Allgather, Equal) { check_equal(comm); }
TUTTI_CASE(Allgather, Variable) { check_variable(comm); }
TUTTI_CASE(Allgather, ProcessSets) {
  in_process_set(comm, [](Communicator& set) {
    check_equal(set);
    check_variable(set);
  });
}

TUTTI_CASE(Allgather, BooleansAndScalars) {
  auto flag = make_tensor(Shape{}, DataType::boolean, [&](int64_t) { return comm.rank() == 1; });
  const auto all = comm.allgather("flag", flag).output();
  EXPECT_EQ(all.shape(), (Shape{comm.size()}));
  expect_elements(all, [](int64_t i) { return i == 1; });
}

TUTTI_CASE(Allgather, IntoTheCallersMemory) {
  const auto input = rows_of(comm.rank(), 2, DataType::f32);
  const Tensor output(Shape{2 * comm.size(), 3}, DataType::f32);
  comm.allgather("into", input, output).wait();
  expect_gathered(output, comm.size(), [](int) { return 2; });
}

// Rank r gives r + 1 rows. They lie in the output itself, at every row where they fit, and must be
// moved to their right rows.
template <class Gather>
void gather_from_every_row(Communicator& comm, bool has_output, Gather gather) {
  const int size = comm.size();
  const int64_t own = comm.rank() + 1, all = size * (size + 1) / 2;
  for (int64_t at = 0; at < all; ++at) {
    const Tensor output(Shape{all, 3}, DataType::f32);
    if (!has_output) {
      gather(rows_of(comm.rank(), own, DataType::f32), TensorView());
      continue;
    }
    auto* data = reinterpret_cast<float*>(output.data());
    std::fill_n(data, 3 * all, -1.0f);
    const int64_t begin = std::min(at, all - own);
    std::fill_n(data + 3 * begin, 3 * own, static_cast<float>(comm.rank()));
    gather(TensorView(data + 3 * begin, Shape{own, 3}, DataType::f32), output);
    expect_gathered(output, size, [](int rank) { return int64_t{rank} + 1; });
  }
}

TUTTI_CASE(Allgather, FromEveryRowOfTheOutput) {
  gather_from_every_row(comm, true, [&](TensorView input, TensorView output) {
    comm.allgather("rows", input, output).wait();
  });
}

TUTTI_CASE(Rooted, GatherFromEveryRowOfTheOutput) {
  for (int root = 0; root < comm.size(); ++root)
    gather_from_every_row(comm, comm.rank() == root, [&](TensorView input, TensorView output) {
      comm.gather("rows", input, output, root).wait();
    });
}

TUTTI_CASE(Allgather, AsyncFused) {
  std::vector<Tensor> inputs;
  std::vector<Work> works;
  for (int t = 0; t < 20; ++t)
    inputs.push_back(
        rows_of(comm.rank(), t % 4 + comm.rank(), numbers()[static_cast<size_t>(t) % 12]));
  for (int t = 0; t < 20; ++t)
    works.push_back(comm.allgather(fmt::format("fused {}", t), inputs[static_cast<size_t>(t)]));
  for (int t = 19; t >= 0; --t)
    expect_gathered(works[static_cast<size_t>(t)].output(), comm.size(),
                    [&](int rank) { return t % 4 + rank; });
}

TUTTI_CASE(Allgather, ShapeError) {
  std::vector<float> values(12, 1);
  const auto shape = comm.rank() == 0 ? Shape{2, 3} : Shape{2, 6};
  expect_mismatch(
      comm,
      fmt::format("\"x\": {}; all ranks must submit the same shape, except for the first extent. "
                  "Nothing was changed.",
                  rank_zero_differs(comm, "f32[2,3]", "f32[2,6]")),
      [&] { comm.allgather("x", TensorView(values.data(), shape, DataType::f32)).wait(); });
}

TUTTI_CASE(Allgather, DtypeError) {
  std::vector<float> values(3, 1);
  const auto dtype = comm.rank() == 0 ? DataType::f32 : DataType::u32;
  expect_mismatch(
      comm,
      fmt::format("\"x\": {}; all ranks must submit the same dtype. Nothing was changed.",
                  rank_zero_differs(comm, "f32[3]", "u32[3]")),
      [&] { comm.allgather("x", TensorView(values.data(), Shape{3}, dtype)).wait(); });
}

TUTTI_CASE(Allgather, DuplicateName) {
  std::vector<float> values(3, 1);
  expect_duplicate_refused(comm,
                           [&](const std::string& name) { return comm.allgather(name, values); });
}

void check_grouped_allgather(Communicator& comm) {
  std::vector<Tensor> inputs;
  std::vector<NamedTensor> members;
  for (const auto dtype : numbers()) {
    inputs.push_back(rows_of(comm.rank(), comm.rank() + 1, dtype));
    members.push_back({fmt::format("member {}", members.size()), inputs.back()});
  }
  auto work = comm.grouped_allgather("group", members);
  for (size_t i = 0; i < members.size(); ++i)
    expect_gathered(work.output(i), comm.size(), [](int rank) { return rank + 1; });
}

TUTTI_CASE(GroupedAllgather, Basic) { check_grouped_allgather(comm); }
TUTTI_CASE(GroupedAllgather, ProcessSets) { in_process_set(comm, check_grouped_allgather); }

// --- broadcast ----------------------------------------------------------------------------------

void check_broadcast(Communicator& comm) {
  for_each_tensor(all_dtypes(), [&](const std::string& name, Shape shape, DataType dtype) {
    for (int root = 0; root < comm.size(); ++root) {
      // The first five ranks all send different values, even as booleans.
      const auto value = [&](int rank) {
        return [=](int64_t i) {
          return static_cast<double>(dtype == DataType::boolean ? i >> rank & 1 : i % 7 + 3 * rank);
        };
      };
      const auto tensor = make_tensor(shape, dtype, value(comm.rank()));
      comm.broadcast(name, tensor, root).wait();
      expect_elements(tensor, value(root));
    }
  });
}

TUTTI_CASE(Broadcast, InPlace) { check_broadcast(comm); }
TUTTI_CASE(Broadcast, ProcessSets) { in_process_set(comm, check_broadcast); }

TUTTI_CASE(Broadcast, ShapeError) {
  std::vector<float> values(4, 1);
  const int64_t count = comm.rank() == 0 ? 3 : 4;
  expect_mismatch(
      comm,
      fmt::format("\"x\": {}; all ranks must submit the same shape. Nothing was changed.",
                  rank_zero_differs(comm, "f32[3]", "f32[4]")),
      [&] { comm.broadcast("x", TensorView(values.data(), Shape{count}, DataType::f32)).wait(); });
}

TUTTI_CASE(Broadcast, DtypeError) {
  std::vector<float> values(3, 1);
  const auto dtype = comm.rank() == 0 ? DataType::f32 : DataType::i32;
  expect_mismatch(
      comm,
      fmt::format("\"x\": {}; all ranks must submit the same dtype. Nothing was changed.",
                  rank_zero_differs(comm, "f32[3]", "i32[3]")),
      [&] { comm.broadcast("x", TensorView(values.data(), Shape{3}, dtype)).wait(); });
}

TUTTI_CASE(Broadcast, RootErrors) {
  std::vector<float> values(3, 1);
  expect_mismatch(
      comm,
      fmt::format("\"x\": {}; all ranks must submit the same root. Nothing was changed.",
                  rank_zero_differs(comm, "root 0", "root 1")),
      [&] { comm.broadcast("x", values, comm.rank() == 0 ? 0 : 1).wait(); });
  for (const int root : {-1, comm.size()}) {
    const auto error = error_of([&] { return comm.broadcast("x", values, root); });
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_EQ(error.what(), fmt::format("\"x\": rank {} of {} does not exist; ranks are 0 to {}",
                                        root, comm.size(), comm.size() - 1));
  }
  expect_still_works(comm);
}

TUTTI_CASE(Broadcast, DuplicateName) {
  std::vector<float> values(3, 1);
  expect_duplicate_refused(comm,
                           [&](const std::string& name) { return comm.broadcast(name, values); });
}

// --- one root -----------------------------------------------------------------------------------

TUTTI_CASE(Rooted, ReduceGatherScatterAtEveryRoot) {
  const int size = comm.size();
  for (int root = 0; root < size; ++root) {
    const bool is_root = comm.rank() == root;
    std::vector<double> input(5, comm.rank()), output(5, -1);
    comm.reduce("reduce", input, output, root).wait();
    EXPECT_EQ(output, std::vector<double>(5, is_root ? size * (size - 1) / 2 : -1));

    const auto own = rows_of(comm.rank(), comm.rank(), DataType::i64);
    const auto gathered = comm.gather("gather", own, root).output();
    expect_gathered(gathered, is_root ? size : 0, [](int rank) { return rank; });

    // Rank r gets r rows.
    std::vector<int64_t> rows;
    std::vector<int> dealt;
    for (int rank = 0; rank < size; ++rank) {
      rows.push_back(rank);
      dealt.insert(dealt.end(), static_cast<size_t>(rank), rank);
    }
    const auto part =
        comm.scatter("scatter", is_root ? TensorView(dealt) : TensorView(), root, rows).output();
    EXPECT_EQ(part.count(), comm.rank());
    expect_elements(part, [&](int64_t) { return comm.rank(); });
  }
}

TUTTI_CASE(Rooted, SendAndReceive) {
  const int next = (comm.rank() + 1) % comm.size();
  const int previous = (comm.rank() + comm.size() - 1) % comm.size();
  std::vector<int> out(1000, comm.rank()), in(1000, -1);
  auto sent = comm.send(fmt::format("to {}", next), out, next);
  comm.recv(fmt::format("to {}", comm.rank()), in, previous).wait();
  sent.wait();
  EXPECT_EQ(in, std::vector<int>(1000, previous));
  EXPECT_EQ(error_of([&] { return comm.send("self", out, comm.rank()); }).code(),
            ErrorCode::invalid_argument);
  if (comm.rank() < 2) {
    const auto what = comm.rank() == 0 ? "sends" : "expects";
    const auto error = error_of([&] {
      auto work =
          comm.rank() == 0 ? comm.send("p", out, 1) : comm.recv("p", std::span(in).first(10), 0);
      work.wait();
    });
    EXPECT_EQ(error.what(),
              std::string("\"p\": rank 0 sends i32[1000], rank 1 expects i32[10]; both must name "
                          "the same dtype and number of elements. Nothing was changed."))
        << "rank that " << what;
  }
  expect_still_works(comm);
}

// --- bytes of any length ------------------------------------------------------------------------

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string object_of(int rank) { return std::string(static_cast<size_t>(rank) * 100, 'a'); }

void check_objects(Communicator& comm) {
  const auto own = object_of(comm.rank());
  const auto bytes = std::as_bytes(std::span(own.data(), own.size()));
  for (int root = 0; root < comm.size(); ++root)
    EXPECT_EQ(text_of(comm.broadcast_bytes("object", bytes, root)), object_of(root));
  const auto all = comm.allgather_bytes("objects", bytes);
  ASSERT_EQ(all.size(), static_cast<size_t>(comm.size()));
  for (int rank = 0; rank < comm.size(); ++rank)
    EXPECT_EQ(text_of(all[static_cast<size_t>(rank)]), object_of(rank));
}

// If the root fails to make the bytes, every rank gets the error, and the name can be used again.
void check_object_that_cannot_be_made(Communicator& comm) {
  for (int root = 0; root < comm.size(); ++root) {
    const auto text = fmt::format(
        "\"object\": rank {} could not hand in its part, so no rank gets any: no such file: two "
        "lines",
        root);
    int made = 0;
    expect_error(ErrorCode::invalid_argument, text, [&] {
      comm.broadcast_made_bytes(
          "object",
          [&]() -> std::vector<std::byte> {
            ++made;
            throw std::runtime_error("no such file:\ntwo lines");
          },
          root);
    });
    EXPECT_EQ(made, comm.rank() == root ? 1 : 0);
    const auto bytes = comm.broadcast_made_bytes(
        "object", [&] { return std::vector(3, static_cast<std::byte>(comm.rank())); }, root);
    EXPECT_EQ(bytes, std::vector(3, static_cast<std::byte>(root)));
  }
}

TUTTI_CASE(Objects, BroadcastAndAllgather) { check_objects(comm); }
TUTTI_CASE(Objects, ThatCannotBeMade) { check_object_that_cannot_be_made(comm); }
TUTTI_CASE(Objects, ProcessSets) { in_process_set(comm, check_objects); }

// --- sparse rows --------------------------------------------------------------------------------

void check_sparse(Communicator& comm) {
  // Rank r brings rows r and 7 of an embedding of two columns. Rank 0 brings only row 7.
  const auto indices_of = [](int rank) {
    return rank == 0 ? std::vector<int64_t>{7} : std::vector<int64_t>{rank, 7};
  };
  for (const auto op : {ReduceOp::sum, ReduceOp::average}) {
    auto indices = indices_of(comm.rank());
    const auto rows = static_cast<int64_t>(indices.size());
    const auto values = make_tensor(Shape{rows, 2}, DataType::f32,
                                    [&](int64_t) { return comm.rank() * comm.size(); });
    auto work = comm.sparse_allreduce("embedding", {indices, values}, op);
    std::vector<int64_t> expected;
    std::vector<float> expected_values;
    for (int rank = 0; rank < comm.size(); ++rank)
      for (const auto index : indices_of(rank)) {
        expected.push_back(index);
        const int value = op == ReduceOp::sum ? rank * comm.size() : rank;
        expected_values.insert(expected_values.end(), 2, static_cast<float>(value));
      }
    const auto merged = work.output(0), merged_values = work.output(1);
    EXPECT_EQ(std::vector(merged.span<int64_t>().begin(), merged.span<int64_t>().end()), expected);
    EXPECT_EQ(std::vector(merged_values.span<float>().begin(), merged_values.span<float>().end()),
              expected_values);
  }
}

TUTTI_CASE(Sparse, Async) { check_sparse(comm); }
TUTTI_CASE(Sparse, ProcessSets) { in_process_set(comm, check_sparse); }

}  // namespace
}  // namespace tutti::test
