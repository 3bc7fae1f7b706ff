// Errors of a call that its rank can see alone. Each is refused immediately with one line, and
// everything else goes on.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <thread>

#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/wait_until.h"
#include "tutti/core/communicator.h"

namespace tutti {
namespace {

using test::expect_error;
using test::expect_refused;
using test::run_threads;

void expect_sums_go_on(Communicator& comm) {
  std::vector<float> values(10, 1.0f);
  comm.allreduce("goes on", values, ReduceOp::sum).wait();
  for (const float value : values) ASSERT_EQ(value, static_cast<float>(comm.size()));
}

class WrongArguments : public testing::Test {
 protected:
  // Returns memory of a rank that outlives the call.
  std::vector<float>& floats(const Communicator& comm) {
    return floats_[static_cast<size_t>(comm.rank())];
  }

 private:
  std::array<std::vector<float>, 2> floats_ = {std::vector<float>(64, 1.0f),
                                               std::vector<float>(64, 1.0f)};
};

// An invalid name is refused on its own rank, in one short printable line.
TEST_F(WrongArguments, NamesThatCannotBe) {
  run_threads(2, [&](Communicator& comm) {
    auto& values = floats(comm);
    const auto other = std::string_view("a\0b", 3);
    const std::string long_name(20 << 20, 'x'), longest(4096, 'y');
    const std::vector<std::function<void(std::string_view)>> calls = {
        [&](std::string_view name) { comm.allreduce(name, values).wait(); },
        [&](std::string_view name) { comm.allreduce_blocking(name, values); },
        [&](std::string_view name) { comm.broadcast(name, values).wait(); },
        [&](std::string_view name) { comm.broadcast(name, values, 7).wait(); },
        [&](std::string_view name) { comm.send(name, values, 1 - comm.rank()).wait(); },
        [&](std::string_view name) { comm.barrier(name).wait(); },
        [&](std::string_view name) {
          comm.allreduce(comm.declare(name, Shape{64}, DataType::f32), values).wait();
        },
        [&](std::string_view name) {
          const std::vector<NamedTensor> members = {{"member", values}};
          comm.grouped_allreduce(name, members).wait();
        },
        [&](std::string_view name) {
          const std::vector<NamedTensor> members = {{"member", values}};
          comm.grouped_allgather(name, members).wait();
        },
    };
    for (size_t i = 0; i < calls.size(); ++i)
      for (const auto name : {other, std::string_view("line\nbreak"),
                              std::string_view("12345678\t"), std::string_view("1234567\x1f"),
                              std::string_view("w\x7f"), std::string_view(long_name)}) {
        SCOPED_TRACE(fmt::format("call {}, {} bytes", i, name.size()));
        // Call 3 also has a wrong root.
        const auto error = test::expect_refused(
            i == 3 ? "" : fmt::format("a name of {} bytes", name.size()), [&] { calls[i](name); });
        const std::string_view text = error.what();
        EXPECT_LT(text.size(), 300u);
        EXPECT_LE(error.tensor().size(), 4096u);
        for (const char c : text) EXPECT_GE(static_cast<unsigned char>(c), 0x20);
      }
    EXPECT_EQ(test::refusal([&] { return comm.allreduce(other, values); }),
              "\"a\\u0000b\": a name of 3 bytes was given; a name has at most 4096 bytes and "
              "no control characters");
    for (const std::string_view good :
         {std::string_view(longest), std::string_view("gr\u00fc\u00df"),
          std::string_view(" !\"\\")})
      comm.allreduce(good, values).wait();
    expect_sums_go_on(comm);
  });
}

TEST_F(WrongArguments, TensorsThatOneRankCanSee) {
  std::atomic<bool> has_tried{false};
  run_threads(2, [&](Communicator& comm) {
    auto& values = floats(comm);
    std::vector<int64_t> indices(3, 1);
    const TensorView rows(values.data(), Shape{3, 2}, DataType::f32);
    expect_refused("\"x\": sparse tensors are summed or averaged, not max", [&] {
      static_cast<void>(comm.sparse_allreduce("x", {indices, rows}, ReduceOp::max));
    });
    const TensorView too_few(values.data(), Shape{2, 2}, DataType::f32);
    expect_refused(
        "\"x\": indices i64[3] and values f32[2,2] are not a sparse tensor: expected i64[k] and "
        "[k, ...]",
        [&] {
          static_cast<void>(comm.sparse_allreduce("x", {indices, too_few}));
        });
    const TensorView output(values.data() + 8, Shape{2, 3}, DataType::f32);
    expect_refused("\"x\": input f32[3,2] and output f32[2,3] must have the same dtype and shape",
                   [&] { return comm.allreduce("x", rows, output); });
    expect_refused(
        "\"x\": input f32[3,2] and output f32[2,3] must have the same dtype and shape, except for "
        "the first extent",
        [&] { return comm.allgather("x", rows, output); });
    const int64_t strides[] = {1, 3};
    const auto other_strides =
        TensorView(values.data() + 8, Shape{3, 2}, DataType::f32).with_strides(strides);
    expect_refused(
        "\"x\": input with strides [2,1] and output with strides [1,3] must have the same layout",
        [&] { return comm.allreduce("x", rows, other_strides); });
    expect_refused("\"x\": allgather takes row-major tensors, this one f32[3,2] has strides [1,3]",
                   [&] { return comm.allgather("x", other_strides); });
    double scalar = 1;
    const TensorView no_rows(&scalar, Shape{}, DataType::f64);
    expect_refused("\"x\": a scalar has no rows to scatter; give it a first dimension",
                   [&] { return comm.scatter("x", no_rows, comm.rank()); });
    expect_refused("group \"\": a group has a name and at least one tensor", [&] {
      static_cast<void>(comm.grouped_allreduce("", std::vector<NamedTensor>{{"x", values}}));
    });
    expect_refused("group \"g\": a group has a name and at least one tensor",
                   [&] { return comm.grouped_allreduce("g", std::vector<NamedTensor>{}); });
    auto work = comm.allreduce("one", values);
    work.wait();
    expect_refused(
        "\"one\" has 0 outputs, so none has the number 0; allreduce and broadcast write into the "
        "caller's tensor",
        [&] { work.output(); });
    // A rank that has joined cannot join again until all ranks have joined. Rank 1 waits until rank
    // 0 has tried.
    if (comm.rank() == 0) {
      auto joined = comm.join();
      expect_error(ErrorCode::duplicate_name, "rank 0 has joined already; wait for that Work first",
                   [&] { return comm.join(); });
      has_tried = true;
      joined.wait();
    } else {
      EXPECT_TRUE(test::wait_until([&] { return has_tried.load(); }));
      comm.join().wait();
    }
    expect_sums_go_on(comm);
  });
}

TEST_F(WrongArguments, ArgumentsThatOneRankCanSee) {
  run_threads(2, [&](Communicator& comm) {
    auto& values = floats(comm);
    std::vector<int64_t> whole(4, 1);
    expect_refused("an operation needs a name by which the ranks match it",
                   [&] { return comm.allreduce("", values); });
    expect_refused("\"x\": op band cannot be applied to f32",
                   [&] { return comm.allreduce("x", values, ReduceOp::band); });
    expect_refused("\"x\": i64 cannot travel as bf16; a wire type is for floats",
                   [&] { return comm.allreduce("x", whole, {.wire = DataType::bf16}); });
    for (const int root : {2, -1})
      expect_refused(fmt::format("\"x\": rank {} of 2 does not exist; ranks are 0 to 1", root),
                     [&] { return comm.broadcast("x", values, root); });
    expect_refused(fmt::format("\"x\": rank {} cannot send to itself", comm.rank()),
                   [&] { return comm.send("x", values, comm.rank()); });
    const int64_t few[] = {1};
    expect_refused("\"x\": 1 row count were given for 2 ranks",
                   [&] { return comm.alltoall("x", values, few); });
    const int64_t negative[] = {-1, 65};
    expect_refused("\"x\": rows [-1,65] hold a negative count",
                   [&] { return comm.alltoall("x", values, negative); });
    expect_refused(
        fmt::format("\"x\": the tensor f32[4] of rank {} has no memory", comm.rank()),
        [&] { return comm.allreduce("x", TensorView(nullptr, Shape{4}, DataType::f32)); });
    expect_refused("this TensorHandle was not made by declare() of this Communicator",
                   [&] { return comm.allreduce(TensorHandle(), values); });
    const auto handle = comm.declare("h", Shape{3}, DataType::f32);
    expect_refused("\"h\": declared as f32[3], but f32[64] came",
                   [&] { return comm.allreduce(handle, values); });
    expect_refused("this Work is empty: it was made by Work() and not by a Communicator",
                   [] { Work().wait(); });
    expect_sums_go_on(comm);
  });
}

}  // namespace
}  // namespace tutti
