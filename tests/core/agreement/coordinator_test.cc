#include "tutti/core/agreement/coordinator.h"

#include <gtest/gtest.h>

#include "tutti/core/agreement/messages.h"

namespace tutti {
namespace {

const auto kNow = Clock::time_point();

// Runs rank 0's half of the agreement; the test feeds it the messages of the ranks.
class CoordinatorTest : public testing::Test {
 protected:
  static Options options() {
    Options options;
    options.replay_after = 2;
    return options;
  }

  static WireReader body(const WireWriter& message) {
    return WireReader(message.bytes().subspan(1));  // behind the message type
  }
  void ask(int rank, const std::string& name) {
    auto message = begin_message(MessageType::requests);
    Request request;
    request.name = name;
    request.signature.shape = {4};
    encode_request(message, request, NameCache(0));
    coordinator_.on_requests(rank, body(message), kNow);
  }
  void say(int rank, MessageType type) {
    auto message = begin_message(type);
    message.put(plan_);
    if (type == MessageType::plan_failed) message.put(uint8_t{0}).put(uint16_t{0});
    if (type == MessageType::plan_joined) coordinator_.on_plan_joined(rank, body(message));
    if (type == MessageType::plan_failed) coordinator_.on_plan_failed(body(message));
    if (type == MessageType::plan_left) coordinator_.on_plan_left(rank, body(message));
  }

  // The answers that rank 0 received since the last call.
  struct Heard {
    std::vector<std::string> names;
    bool has_plan = false;
  };
  Heard hear() {
    coordinator_.answer();
    Heard heard;
    for (const auto& message : sent_) {
      WireReader reader(message);
      EXPECT_EQ(reader.enumeration<MessageType>(kMessageTypeCount), MessageType::answers);
      while (!reader.at_end()) {
        if (reader.enumeration<AnswerType>(2) == AnswerType::plan) {
          plan_ = Plan::decode(reader, options_.fusion_bytes, options_.partition_bytes).id;
          heard.has_plan = true;
          continue;
        }
        const auto response = decode_response(reader, cache_);
        if (!response.error) cache_.remember(response.name, response.signature);
        heard.names.push_back(response.name);
      }
    }
    sent_.clear();
    return heard;
  }
  // Runs steps of "a" and "b" on both ranks until a plan is locked.
  void lock() {
    for (int step = 0; step < 10; ++step)
      for (const std::string name : {"a", "b"}) {
        ask(0, name);
        ask(1, name);
        if (hear().has_plan) return;
      }
    FAIL() << "no plan";
  }

  const Options options_ = options();
  std::vector<std::vector<std::byte>> sent_;
  NameCache cache_{options_.cache_capacity};
  uint32_t plan_ = 0;
  Coordinator coordinator_{options_, 2, [this](int rank, std::span<const std::byte> message) {
                             if (rank == 0) sent_.emplace_back(message.begin(), message.end());
                           }};
};

TEST_F(CoordinatorTest, WhatWasAskedBeforeThePlanWasHeardOfIsNotAskedTwice) {
  lock();
  // Rank 0 gives the plan up before rank 1 has received it.
  say(0, MessageType::plan_joined);
  say(0, MessageType::plan_failed);
  say(0, MessageType::plan_left);
  ask(0, "a");
  ask(1, "a");  // sent before rank 1 receives the plan, which then contains this request
  EXPECT_TRUE(hear().names.empty());
  say(1, MessageType::plan_joined);
  say(1, MessageType::plan_left);
  ask(1, "a");  // rank 1 has left the plan and asks for it again
  EXPECT_EQ(hear().names, std::vector<std::string>{"a"});
}

TEST_F(CoordinatorTest, TheNextPlanWaitsUntilAllRanksHaveLeftTheLast) {
  lock();
  for (const int rank : {0, 1}) say(rank, MessageType::plan_joined);
  say(0, MessageType::plan_failed);
  say(0, MessageType::plan_left);
  for (int step = 0; step < 20; ++step)
    for (const std::string name : {"c", "d"}) {
      ask(0, name);
      ask(1, name);
      const auto heard = hear();
      ASSERT_FALSE(heard.has_plan);
      ASSERT_EQ(heard.names, std::vector<std::string>{name});
    }
  say(1, MessageType::plan_left);
  lock();
}

// The answer to an alltoall holds one row count for each rank, not one for each pair of ranks. The
// other answers of the same message are unchanged.
TEST(CoordinatorAlltoall, TellsEachRankWhatItGets) {
  constexpr int kSize = 3;
  const int64_t rows[kSize][kSize] = {{1, 2, 3}, {0, 5, 0}, {7, 0, 4}};
  const Options options;
  std::vector<std::vector<std::byte>> sent(kSize);
  Coordinator coordinator(options, kSize, [&](int rank, std::span<const std::byte> message) {
    sent[static_cast<size_t>(rank)].assign(message.begin(), message.end());
  });
  for (int rank = 0; rank < kSize; ++rank) {
    auto message = begin_message(MessageType::requests);
    Request request;
    request.name = "before";
    request.signature.shape = {4};
    encode_request(message, request, NameCache(0));
    request.name = "dealt";
    request.signature.kind = CollectiveKind::alltoall;
    request.rows.assign(std::begin(rows[rank]), std::end(rows[rank]));
    encode_request(message, request, NameCache(0));
    coordinator.on_requests(rank, WireReader(message.bytes().subspan(1)), kNow);
  }
  coordinator.answer();
  for (int rank = 0; rank < kSize; ++rank) {
    WireReader reader(sent[static_cast<size_t>(rank)]);
    EXPECT_EQ(reader.enumeration<MessageType>(kMessageTypeCount), MessageType::answers);
    const NameCache cache(0);
    EXPECT_EQ(reader.enumeration<AnswerType>(2), AnswerType::response);
    EXPECT_EQ(decode_response(reader, cache).name, "before");
    EXPECT_EQ(reader.enumeration<AnswerType>(2), AnswerType::response);
    const auto response = decode_response(reader, cache);
    EXPECT_EQ(response.name, "dealt");
    EXPECT_EQ(response.rows,
              (std::vector<int64_t>{rows[0][rank], rows[1][rank], rows[2][rank], 7}));
    EXPECT_TRUE(reader.at_end());
  }
}

}  // namespace
}  // namespace tutti
