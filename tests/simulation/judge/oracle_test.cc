#include "tests/simulation/judge/oracle.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/simulation/judge/small_world.h"

namespace tutti::simulation {
namespace {

// Returns the model's result of one operation on one rank, as f32.
std::vector<float> result_of(std::string_view text, int rank, const std::string& name) {
  SmallWorld world(text);
  const auto& bytes = world.operation(rank, name).output;
  std::vector<float> values(bytes.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::string disagreement_of(std::string_view text, const std::string& name) {
  SmallWorld world(text);
  const Oracle oracle(world.from(), world.record());
  const Meeting* meeting = oracle.meeting_of(world.operation(0, name));
  return meeting == nullptr ? "nobody meets" : oracle.disagreement(*meeting);
}

float input_of(int rank, int64_t i, CollectiveKind kind, ReduceOp op = ReduceOp::sum) {
  return static_cast<float>(
      value_of({.name = "t", .kind = kind, .op = op, .contents = 7}, rank, i));
}

TEST(Oracle, SumsAndAveragesOfAll) {
  const auto sum = result_of("world\nranks 0,1: submit t allreduce 2 c=7; wait\n", 1, "t");
  const auto kind = CollectiveKind::allreduce;
  ASSERT_EQ(sum.size(), 2U);
  EXPECT_EQ(sum[1], input_of(0, 1, kind) + input_of(1, 1, kind));
  const auto average =
      result_of("world\nranks 0,1: submit t allreduce 1 op=average c=7; wait\n", 0, "t");
  EXPECT_EQ(
      average[0],
      (input_of(0, 0, kind, ReduceOp::average) + input_of(1, 0, kind, ReduceOp::average)) / 2);
}

TEST(Oracle, ARankThatHasJoinedIsNotCounted) {
  const auto average = result_of(
      "world size=3\nranks 0,1: submit t allreduce 1 op=average c=7; wait; join\nranks 2: join\n",
      0, "t");
  const auto kind = CollectiveKind::allreduce;
  ASSERT_EQ(average.size(), 1U);
  EXPECT_EQ(
      average[0],
      (input_of(0, 0, kind, ReduceOp::average) + input_of(1, 0, kind, ReduceOp::average)) / 2);
}

TEST(Oracle, AfterAllHaveJoinedNamesMeetAnew) {
  SmallWorld world(
      "world\nranks 0: submit t allreduce 1 c=1; wait; join; submit t allreduce 1 c=7\n"
      "ranks 1: join; submit t allreduce 1 c=7\n");
  const Oracle oracle(world.from(), world.record());
  const Meeting* first = oracle.meeting_of(world.operation(0, "t"));
  EXPECT_EQ(first->joined, std::vector<int>{1});
  EXPECT_TRUE(first->is_complete());
  const Meeting* second = oracle.meeting_of(world.operation(0, "t", 1));
  EXPECT_EQ(second, oracle.meeting_of(world.operation(1, "t")));
  EXPECT_EQ(second->voices.size(), 2U);
}

TEST(Oracle, WhatAJoinRefusedIsNoUseOfItsName) {
  SmallWorld world(
      "world size=3\nranks 0: submit t recv 1 root=1; submit t recv 1 root=1\n"
      "ranks 1: join; submit t send 1\nranks 2: close\n");
  world.fail(1, "join", ErrorCode::peer_left, 2, 90);
  world.fail(0, "t", ErrorCode::mismatch, 1, 50, "rank 1 has joined (is out of data); only");
  const Oracle oracle(world.from(), world.record());
  const Meeting* refused = oracle.meeting_of(world.operation(0, "t"));
  EXPECT_EQ(refused->joined, std::vector<int>{1});
  EXPECT_NE(oracle.disagreement(*refused), "");
  const Meeting* second = oracle.meeting_of(world.operation(0, "t", 1));
  EXPECT_EQ(second, oracle.meeting_of(world.operation(1, "t")));
  EXPECT_EQ(oracle.disagreement(*second), "");
}

TEST(Oracle, MovesRowsBetweenRanks) {
  const auto gathered = result_of(
      "world\nranks 0: submit t allgather 1 c=7\nranks 1: submit t allgather 2 c=7\n", 0, "t");
  const auto kind = CollectiveKind::allgather;
  EXPECT_EQ(gathered,
            (std::vector<float>{input_of(0, 0, kind), input_of(1, 0, kind), input_of(1, 1, kind)}));
  const auto dealt = result_of("world\nranks 0,1: submit t scatter 3 root=1 c=7\n", 1, "t");
  EXPECT_EQ(dealt, std::vector<float>{input_of(1, 2, kind)});
  const auto swapped = result_of("world\nranks 0,1: submit t alltoall 3 splits=1/2 c=7\n", 1, "t");
  EXPECT_EQ(swapped, (std::vector<float>{input_of(0, 1, kind), input_of(0, 2, kind),
                                         input_of(1, 1, kind), input_of(1, 2, kind)}));
  const auto shares = result_of("world\nranks 0,1: submit t reduce_scatter 3 c=7\n", 1, "t");
  const auto reducing = CollectiveKind::reduce_scatter;
  EXPECT_EQ(shares, std::vector<float>{input_of(0, 2, reducing) + input_of(1, 2, reducing)});
  EXPECT_TRUE(result_of("world\nranks 0,1: submit t gather 1 root=1 c=7\n", 0, "t").empty());
  const auto received = result_of(
      "world\nranks 0: submit t send 1 root=1 c=7\nranks 1: submit t recv 1 c=9\n", 1, "t");
  EXPECT_EQ(received, std::vector<float>{input_of(0, 0, CollectiveKind::send)});
}

TEST(Oracle, KnowsWhatMustAgree) {
  const std::string head = "world\nranks 0: submit t ";
  const auto against = [&](const std::string& one, const std::string& other) {
    return disagreement_of(head + one + "\nranks 1: submit t " + other + "\n", "t");
  };
  EXPECT_EQ(against("allreduce 4", "allreduce 4"), "");
  EXPECT_NE(against("allreduce 4", "allreduce 5"), "");
  EXPECT_NE(against("allreduce 4", "allreduce 4 op=max"), "");
  EXPECT_NE(against("allreduce 4", "allreduce 4 dtype=f64"), "");
  EXPECT_NE(against("allreduce 4", "barrier 0"), "");
  EXPECT_EQ(against("allgather 4x2", "allgather 5x2"), "");
  EXPECT_NE(against("allgather 4x2", "allgather 4x3"), "");
  EXPECT_NE(against("broadcast 4", "broadcast 4 root=1"), "");
  EXPECT_EQ(against("scatter 4", "scatter 5x2"), "");
  EXPECT_NE(against("send 4 root=1", "recv 5"), "");
  EXPECT_EQ(against("send 4 root=1", "recv 2x2"), "");
  EXPECT_NE(disagreement_of("world\nranks 0: submit t allgather 4; join\nranks 1: join\n", "t"),
            "");
}

TEST(Oracle, AGroupIsRefusedAsAWhole) {
  EXPECT_NE(disagreement_of("world\nranks 0: submit text=g a allreduce 4, b allreduce 4\n"
                            "ranks 1: submit text=g a allreduce 4, b allreduce 5\n",
                            "a"),
            "");
  EXPECT_EQ(disagreement_of("world\nranks 0,1: submit text=g a allreduce 4, b allreduce 4\n", "a"),
            "");
  EXPECT_NE(disagreement_of("world\nranks 0: submit text=g a allreduce 4\n"
                            "ranks 1: submit a allreduce 4\n",
                            "a"),
            "");
}

TEST(Oracle, BlockingCallsMeetInTheirOrderWhereTheyAreServed) {
  const std::string ranks = "ranks 0: block a allreduce 4\nranks 1: block b allreduce 4\n";
  EXPECT_NE(disagreement_of("world\n" + ranks, "a"), "");
  SmallWorld by_name("world serves_blocking=0\n" + ranks);
  const Oracle oracle(by_name.from(), by_name.record());
  EXPECT_FALSE(oracle.meeting_of(by_name.operation(0, "a"))->is_complete());
}

}  // namespace
}  // namespace tutti::simulation
