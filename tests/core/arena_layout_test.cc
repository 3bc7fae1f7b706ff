// Descriptions of a GradientArena's arrays: shape, strides, device, and steps that leave some
// arrays out.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tutti/core/arena.h"

namespace tutti {
namespace {

using test::refusal;
using test::run_threads;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Arrays = std::vector<GradientArena::Array>;

// A batch of images whose channels are innermost.
GradientArena::Array channels_last(const std::string& name) {
  return {.name = name, .shape = {2, 3, 4, 5}, .strides = {60, 1, 15, 3}};
}

float element(int64_t n, int64_t c, int64_t h, int64_t w) {
  return static_cast<float>(((n * 3 + c) * 4 + h) * 5 + w);
}

TEST(ArenaLayout, ViewsHaveTheStridesOfTheirDescription) {
  run_threads(2, [](Communicator& comm) {
    GradientArena arena(comm, {{"pad", {3}}, channels_last("w"), {"plain", {2, 3}}});
    const auto w = arena["w"];
    EXPECT_EQ(w.shape(), (Shape{2, 3, 4, 5}));
    EXPECT_THAT(w.strides(), ElementsAre(60, 1, 15, 3));
    EXPECT_FALSE(w.is_row_major());
    EXPECT_THAT(arena["plain"].strides(), ElementsAre(3, 1));
    EXPECT_TRUE(arena["plain"].is_row_major());
    const auto strides = w.strides();
    for (int step = 0; step < 8; ++step) {
      const auto each = [&](const std::function<void(float&, float)>& use) {
        for (int64_t n = 0; n < 2; ++n)
          for (int64_t c = 0; c < 3; ++c)
            for (int64_t h = 0; h < 4; ++h)
              for (int64_t x = 0; x < 5; ++x)
                use(w.as<float>()[n * strides[0] + c * strides[1] + h * strides[2] +
                                  x * strides[3]],
                    element(n, c, h, x));
      };
      each([&](float& at, float value) { at = value * static_cast<float>(1 + comm.rank()); });
      for (const char* name : {"w", "plain", "pad"}) arena.ready(name);
      arena.wait();
      each([&](float& at, float value) { ASSERT_EQ(at, value * 1.5f); });
    }
  });
}

// An extent of one may have any stride. So may an empty array.
TEST(ArenaLayout, WhatIsRowMajorInFactIsSo) {
  run_threads(1, [](Communicator& comm) {
    GradientArena arena(comm, {{.name = "one", .shape = {1, 4}, .strides = {77, 1}},
                               {.name = "none", .shape = {0, 4}, .strides = {9, 9}},
                               {.name = "turned", .shape = {2, 3}, .strides = {1, 2}}});
    EXPECT_TRUE(arena["one"].is_row_major());
    EXPECT_TRUE(arena["none"].is_row_major());
    EXPECT_FALSE(arena["turned"].is_row_major());
  });
}

TEST(ArenaLayout, WhatCannotBeIsRefusedInOneLine) {
  run_threads(1, [](Communicator& comm) {
    const auto make = [&](const GradientArena::Array& array, ReduceOp op = ReduceOp::average) {
      return refusal([&] { GradientArena(comm, {array}, {.op = op}); });
    };
    for (const std::vector<int64_t>& strides :
         std::vector<std::vector<int64_t>>{{6, 1}, {1, 1}, {3}, {3, 0}, {-3, 1}, {3, 1, 1}})
      EXPECT_THAT(
          make({.name = "w", .shape = {2, 3}, .strides = strides}),
          AllOf(HasSubstr("\"w\""), HasSubstr("leave gaps or overlap"), HasSubstr("like [3,1]")));
    EXPECT_THAT(make({.name = "w", .shape = {2}, .device = {DeviceKind::cuda, 1}}),
                AllOf(HasSubstr("\"w\""), HasSubstr("cuda:1"),
                      HasSubstr("an arena is in host memory; use backend peer or nccl")));
    EXPECT_THAT(make({.name = "w", .shape = {int64_t{1} << 62}}), HasSubstr("16 TiB"));
    EXPECT_THAT(make({.name = "w", .shape = {2}, .may_be_left_out = true}, ReduceOp::max),
                AllOf(HasSubstr("\"w\""), HasSubstr("sum and average"), HasSubstr("not max")));
    EXPECT_THAT(refusal([&] {
                  GradientArena(
                      comm, {{.name = "w", .shape = {2}, .may_be_left_out = true}}, {},
                      [](void*, int64_t, int64_t, const std::byte*) {}, nullptr);
                }),
                HasSubstr("with an update cannot be left out of a step"));
  });
}

TEST(ArenaLayout, OperationsByRowsRefuseOtherStrides) {
  run_threads(2, [](Communicator& comm) {
    GradientArena arena(comm, {channels_last("w")});
    EXPECT_THAT(refusal([&] { return comm.allgather("rows", arena["w"]); }),
                AllOf(HasSubstr("row-major"), HasSubstr("[60,1,15,3]")));
    EXPECT_THAT(refusal([&] { arena["w"].reshaped({120}); }), HasSubstr("[60,1,15,3]"));
    EXPECT_THAT(refusal([&] { Tensor(arena["w"], nullptr); }), HasSubstr("[60,1,15,3]"));
    comm.broadcast("elements", arena["w"]).wait();
    comm.allreduce("elements", arena["w"]).wait();
    // If one rank had another order of elements, its elements would be added to the wrong ones.
    Tensor plain(Shape{2, 3, 4, 5}, DataType::f32);
    EXPECT_THAT(refusal([&] { return comm.allreduce("out", plain, arena["w"], ReduceOptions{}); }),
                HasSubstr("must have the same layout"));
    test::expect_error(ErrorCode::mismatch, "strides", [&] {
      comm.allreduce("mixed", comm.rank() == 0 ? plain.view() : arena["w"]).wait();
    });
  });
}

TEST(ArenaLayout, RanksThatDescribeOtherArraysHearWhy) {
  const auto other = [](const GradientArena::Array& here, const GradientArena::Array& there) {
    run_threads(2, [&](Communicator& comm) {
      GradientArena arena(comm, {comm.rank() == 0 ? here : there, {"end", {1}}});
      arena.ready("w");
      arena.ready("end");
      test::expect_error(ErrorCode::mismatch, "shapes, strides", [&] { arena.wait(); });
    });
  };
  other({"w", {2, 3}}, {"w", {3, 2}});
  other({"w", {2, 3}}, {.name = "w", .shape = {2, 3}, .strides = {1, 2}});
}

// An array that a rank left out counts as zeros. An array that every rank left out is reported as
// such.
void leave_some_out(Communicator& comm) {
  GradientArena arena(comm, {{"always", {1000}},
                             {.name = "sometimes", .shape = {100'000}, .may_be_left_out = true},
                             {.name = "rarely", .shape = {7}, .may_be_left_out = true}});
  const auto fill = [&](const char* name, float value) {
    const auto view = arena[name];
    std::fill_n(view.as<float>(), view.count(), value);
  };
  const int size = comm.size();
  for (int step = 0; step < 24; ++step) {
    const int left_by = step % (size + 2);  // this rank, no rank or every rank leaves the array out
    const bool leaves = left_by == comm.rank() || left_by == size + 1;
    fill("always", static_cast<float>(comm.rank()));
    fill("sometimes", static_cast<float>(size));
    fill("rarely", 1.0f);
    arena.ready("always");
    if (leaves)
      arena.leave_out("sometimes");
    else
      arena.ready("sometimes");
    if (step < 12)
      arena.ready("rarely");
    else
      arena.leave_out("rarely");
    arena.wait();
    const int takers = left_by == size + 1 ? 0 : left_by < size ? size - 1 : size;
    ASSERT_EQ(arena["always"].as<float>()[999], static_cast<float>(size - 1) / 2);
    for (const int64_t i : {0, 99'999})
      ASSERT_FLOAT_EQ(arena["sometimes"].as<float>()[i], static_cast<float>(takers)) << step;
    ASSERT_EQ(arena.used("sometimes"), takers > 0) << step;
    ASSERT_EQ(arena.used("rarely"), step < 12);
    ASSERT_TRUE(arena.used("always"));
    ASSERT_EQ(arena["rarely"].as<float>()[6], step < 12 ? 1.0f : 0.0f);
  }
}

TEST(ArenaLayout, StepsLeaveArraysOut) {
  for (const int size : {1, 2, 3}) run_threads(size, leave_some_out);
}

TEST(ArenaLayout, StepsLeaveArraysOutOverSockets) {
  test::run_processes(2, leave_some_out, [](Options& options) { options.backend = "tcp"; });
}

TEST(ArenaLayout, OnlyWhatWasDescribedSoIsLeftOut) {
  run_threads(2, [](Communicator& comm) {
    GradientArena arena(
        comm, {{"always", {10}}, {.name = "sometimes", .shape = {10}, .may_be_left_out = true}});
    EXPECT_THAT(refusal([&] { arena.leave_out("always"); }), HasSubstr("Array::may_be_left_out"));
    arena.leave_out("sometimes");
    EXPECT_THROW(arena.ready("sometimes"), Error);
    EXPECT_THROW(arena.leave_out("sometimes"), Error);
    EXPECT_THROW(arena.wait(), Error);
    arena.ready("always");
    arena.wait();
    EXPECT_THAT(refusal([&] { arena.wait(); }), HasSubstr("\"always\""));
    arena.ready("always");
    EXPECT_THAT(refusal([&] { arena.wait(); }), HasSubstr("or leave_out()"));
    arena.ready("sometimes");
    arena.wait();
    EXPECT_TRUE(arena.used("sometimes"));
  });
}

}  // namespace
}  // namespace tutti
