// Messages that no rank writes. Each is refused before it has any effect. Most were found by
// tests/fuzz.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "tutti/core/agreement/checks.h"
#include "tutti/core/agreement/coordinator.h"
#include "tutti/core/agreement/pair_learner.h"

namespace tutti {
namespace {

constexpr int kRanks = 3;
const Clock::time_point kStart{};

Request request_of(CollectiveKind kind) {
  Request request;
  request.name = "t";
  request.signature.kind = kind;
  request.signature.shape = {6};
  if (kind == CollectiveKind::alltoall) request.rows = {1, 2, 3};
  return request;
}

Response response_of(CollectiveKind kind, std::vector<int64_t> rows = {}) {
  Response response;
  response.name = "t";
  response.signature = request_of(kind).signature;
  response.rows = std::move(rows);
  return response;
}

Response checked(Response response) {
  check_response(response, kRanks);
  return response;
}

class DamagedMessages : public testing::Test {
 protected:
  void ask(int rank, const Request& request) {
    WireWriter message;
    encode_request(message, request, NameCache(0));
    coordinator_.on_requests(rank, WireReader(message.bytes()), kStart);
  }
  // Returns the answer that all ranks receive.
  Response answer() {
    coordinator_.answer();
    EXPECT_EQ(sent_.size(), 1u);
    WireReader reader(sent_.at(0));
    EXPECT_EQ(reader.enumeration<MessageType>(kMessageTypeCount), MessageType::answers);
    EXPECT_EQ(reader.enumeration<AnswerType>(2), AnswerType::response);
    auto response = checked(decode_response(reader, cache_));
    if (!response.error) cache_.remember(response.name, response.signature);
    EXPECT_TRUE(reader.at_end()) << "a plan follows";
    return response;
  }
  static Response round_trip(const Response& response) {
    WireWriter message;
    encode_response(message, response, NameCache(0));
    WireReader reader(message.bytes());
    return checked(decode_response(reader, NameCache(0)));
  }
  static Plan plan_trip(std::vector<Plan::Tensor> tensors) {
    Plan plan;
    plan.id = 1;
    plan.tensors = std::move(tensors);
    WireWriter message;
    plan.encode(message);
    WireReader reader(message.bytes());
    return Plan::decode(reader, 1 << 20, 1 << 20);
  }

  const Options options_;
  NameCache cache_{options_.cache_capacity};
  std::vector<std::vector<std::byte>> sent_;
  Coordinator coordinator_{options_, kRanks, [this](int rank, std::span<const std::byte> message) {
                             if (rank == 0) sent_.emplace_back(message.begin(), message.end());
                           }};
};

TEST_F(DamagedMessages, RequestsThatNoRankMakes) {
  auto request = request_of(CollectiveKind::broadcast);
  request.signature.root = kRanks;
  EXPECT_THROW(ask(0, request), DamagedMessage);
  request.signature.root = -1;
  EXPECT_THROW(ask(0, request), DamagedMessage);
  auto nameless = request_of(CollectiveKind::allreduce);
  nameless.name = "";
  EXPECT_THROW(ask(0, nameless), DamagedMessage);
  nameless.name = "t\n0-1";  // the coordinator's own name for the transfers between ranks 0 and 1
  EXPECT_THROW(ask(0, nameless), DamagedMessage);
  auto to_itself = request_of(CollectiveKind::send);
  to_itself.signature.root = 1;
  EXPECT_THROW(ask(1, to_itself), DamagedMessage);
  auto all_to_some = request_of(CollectiveKind::alltoall);
  all_to_some.rows = {3, 3};
  EXPECT_THROW(ask(0, all_to_some), DamagedMessage);
  all_to_some.rows = {3, 4, -1};
  EXPECT_THROW(ask(0, all_to_some), DamagedMessage);
  EXPECT_NO_THROW(ask(0, request_of(CollectiveKind::alltoall)));
}

TEST_F(DamagedMessages, ARankAsksAndJoinsOnce) {
  ask(0, request_of(CollectiveKind::allreduce));
  EXPECT_THROW(ask(0, request_of(CollectiveKind::allreduce)), DamagedMessage);
  Request join;
  join.join = true;
  ask(1, join);
  EXPECT_THROW(ask(1, join), DamagedMessage);
}

TEST_F(DamagedMessages, TensorsThatNoMemoryHolds) {
  auto request = request_of(CollectiveKind::allgather);
  request.signature.shape = {INT64_MAX, 0};
  EXPECT_THROW(ask(0, request), DamagedMessage);
  request.signature.shape = {INT64_MAX};
  EXPECT_THROW(ask(0, request), DamagedMessage);
  auto beyond = request_of(CollectiveKind::allreduce);
  beyond.signature.begin = 7;
  EXPECT_THROW(ask(0, beyond), DamagedMessage);
  beyond.signature.begin = -1;
  EXPECT_THROW(ask(0, beyond), DamagedMessage);
}

// A user may give such row counts. He gets a mismatch error, and no sum overflows.
TEST_F(DamagedMessages, RowsThatCannotBeCountedAreAMismatch) {
  auto request = request_of(CollectiveKind::reduce_scatter);
  request.rows = {INT64_MAX, INT64_MAX, 8};
  for (int rank = 0; rank < kRanks; ++rank) ask(rank, request);
  const auto response = answer();
  ASSERT_TRUE(response.error);
  EXPECT_EQ(response.error->code(), ErrorCode::mismatch);
}

TEST_F(DamagedMessages, AScatterWhoseRootHasJoinedIsAMismatch) {
  Request join;
  join.join = true;
  ask(0, join);
  for (int rank = 1; rank < kRanks; ++rank) ask(rank, request_of(CollectiveKind::scatter));
  const auto response = answer();
  ASSERT_TRUE(response.error);
  EXPECT_EQ(response.error->code(), ErrorCode::mismatch);
  EXPECT_THAT(response.error->what(), testing::HasSubstr("rank 0 has joined"));
}

TEST_F(DamagedMessages, AnswersWhoseRowsAreNoRanks) {
  EXPECT_NO_THROW(round_trip(response_of(CollectiveKind::allgather, {6, 6, 6})));
  EXPECT_THROW(round_trip(response_of(CollectiveKind::allgather, {6, 6})), DamagedMessage);
  EXPECT_THROW(round_trip(response_of(CollectiveKind::gather, {6, 6, -6})), DamagedMessage);
  EXPECT_THROW(round_trip(response_of(CollectiveKind::scatter, {6})), DamagedMessage);
  EXPECT_THROW(round_trip(response_of(CollectiveKind::alltoall, {1, 2, 3})), DamagedMessage);
  EXPECT_THROW(round_trip(response_of(CollectiveKind::alltoall, {1, 2, 3, 2})), DamagedMessage);
  EXPECT_THROW(round_trip(response_of(CollectiveKind::send, {0})), DamagedMessage);
  EXPECT_THROW(round_trip(response_of(CollectiveKind::send, {0, 3})), DamagedMessage);
  EXPECT_THROW(round_trip(response_of(CollectiveKind::send, {1, 1})), DamagedMessage);
  auto disagreed = response_of(CollectiveKind::send, {0, 1});
  disagreed.error = Error(ErrorCode::mismatch, "they disagree");
  EXPECT_NO_THROW(round_trip(disagreed));
  disagreed.rows = {0};
  EXPECT_THROW(round_trip(disagreed), DamagedMessage);
  auto pair = response_of(CollectiveKind::send, {0, 1});
  for (const int64_t number : {int64_t{-2}, kMostPairs}) {
    pair.pair = number;
    EXPECT_THROW(round_trip(pair), DamagedMessage);
  }
  pair.pair = 7;
  EXPECT_EQ(round_trip(pair).pair, 7);
  EXPECT_THROW(round_trip(response_of(CollectiveKind::allreduce, {6})), DamagedMessage);
  Response over;
  over.all_joined = true;
  EXPECT_THROW(round_trip(over), DamagedMessage);
  over.rows = {2};
  EXPECT_NO_THROW(round_trip(over));
}

TEST_F(DamagedMessages, AnswersForRanksThatCannotHaveJoined) {
  auto response = response_of(CollectiveKind::allreduce);
  for (const std::vector<int64_t>& joined :
       {std::vector<int64_t>{3}, {-1}, {1, 0}, {1, 1}, {0, 1, 2}}) {
    response.joined = joined;
    EXPECT_THROW(round_trip(response), DamagedMessage);
  }
  response.joined = {0, 2};
  EXPECT_NO_THROW(round_trip(response));
}

// A wrong answer would make the rank read and write beyond its tensor.
TEST_F(DamagedMessages, AnswersAreAboutWhatWasAsked) {
  const auto fits = [](const Request& asked, const Response& answered) {
    try {
      check_answer(asked, answered, 1, kRanks);
      return true;
    } catch (const DamagedMessage&) {
      return false;
    }
  };
  auto larger = response_of(CollectiveKind::allreduce);
  EXPECT_TRUE(fits(request_of(CollectiveKind::allreduce), larger));
  larger.signature.shape = {7};
  EXPECT_FALSE(fits(request_of(CollectiveKind::allreduce), larger));
  auto wider = response_of(CollectiveKind::broadcast);
  wider.signature.dtype = DataType::f64;
  EXPECT_FALSE(fits(request_of(CollectiveKind::broadcast), wider));
  EXPECT_FALSE(fits(request_of(CollectiveKind::reduce), response_of(CollectiveKind::broadcast)));
  const auto gather = request_of(CollectiveKind::allgather);
  EXPECT_TRUE(fits(gather, response_of(CollectiveKind::allgather, {1, 6, 2})));
  EXPECT_FALSE(fits(gather, response_of(CollectiveKind::allgather, {6, 7, 6})));
  EXPECT_FALSE(fits(gather, response_of(CollectiveKind::broadcast)));  // it has no rows
  auto into = gather;
  into.output_rows = 9;
  EXPECT_TRUE(fits(into, response_of(CollectiveKind::allgather, {1, 6, 2})));
  EXPECT_FALSE(fits(into, response_of(CollectiveKind::allgather, {2, 6, 2})));
  const auto scattered = request_of(CollectiveKind::reduce_scatter);
  EXPECT_TRUE(fits(scattered, response_of(CollectiveKind::reduce_scatter, {1, 2, 3})));
  EXPECT_FALSE(fits(scattered, response_of(CollectiveKind::reduce_scatter, {1, 2, 4})));
  const auto to_all = request_of(CollectiveKind::alltoall);
  EXPECT_TRUE(fits(to_all, response_of(CollectiveKind::alltoall, {0, 2, 6, 6})));
  EXPECT_FALSE(
      fits(to_all, response_of(CollectiveKind::alltoall, {0, 3, 6, 6})));  // gives itself 2
  EXPECT_FALSE(
      fits(to_all, response_of(CollectiveKind::alltoall, {0, 2, 2, 2})));  // rank 1 gives 3
  EXPECT_FALSE(fits(to_all, response_of(CollectiveKind::barrier)));        // it has no rows
  auto vast = response_of(CollectiveKind::alltoall, {0, 2, 1 << 30, 1 << 30});
  vast.signature.shape = {6, 1 << 20};
  auto of_vast = to_all;
  of_vast.signature.shape = {6, 1 << 20};
  EXPECT_FALSE(fits(of_vast, vast));
  auto all_into = to_all;
  all_into.output_rows = 8;
  EXPECT_TRUE(fits(all_into, response_of(CollectiveKind::alltoall, {0, 2, 6, 6})));
  all_into.output_rows = 9;
  EXPECT_FALSE(fits(all_into, response_of(CollectiveKind::alltoall, {0, 2, 6, 6})));
  EXPECT_TRUE(fits(request_of(CollectiveKind::recv), response_of(CollectiveKind::send, {0, 1})));
}

TEST_F(DamagedMessages, PlansThatCannotBeReplayed) {
  const auto signature = request_of(CollectiveKind::allreduce).signature;
  EXPECT_EQ(plan_trip({{"a", signature, false}, {"b", signature, true}}).tensors.size(), 2u);
  EXPECT_THROW(plan_trip({}), DamagedMessage);
  EXPECT_THROW(plan_trip({{"a", signature, false}, {"a", signature, false}}), DamagedMessage);
  EXPECT_THROW(plan_trip({{"a", request_of(CollectiveKind::send).signature, false}}),
               DamagedMessage);
  // The plan also holds the row counts that a rank gives in an alltoall.
  Plan::Tensor to_all{"a", request_of(CollectiveKind::alltoall).signature, false, {1, 2, 3, 3}};
  for (const std::vector<int64_t>& given :
       {std::vector<int64_t>{}, {1, 2}, {1, 2, -1}, {1, 2, 4}}) {
    to_all.given = given;
    EXPECT_THROW(check_planned(to_all, kRanks), DamagedMessage);
  }
  to_all.given = {1, 2, 3};
  EXPECT_NO_THROW(check_planned(to_all, kRanks));
  auto endless = signature;
  endless.shape = {int64_t{1} << 40};  // in pieces of 1 MiB
  EXPECT_THROW(plan_trip({{"a", endless, false}}), DamagedMessage);
}

// The coordinator locks no plan that the ranks would refuse.
TEST_F(DamagedMessages, TensorsOfTooManyPiecesAreNegotiatedForEver) {
  auto request = request_of(CollectiveKind::allreduce);
  request.signature.shape = {int64_t{1} << 40};
  for (int step = 0; step < 8; ++step) {
    for (int rank = 0; rank < kRanks; ++rank) ask(rank, request);
    answer();
    sent_.clear();
  }
  EXPECT_GT(count_pieces({{"t", request.signature, false}}, options_.partition_bytes), kMostPieces);
}

TEST_F(DamagedMessages, ErrorsHaveACode) {
  WireWriter message;
  encode(message, Error(ErrorCode{}, "text"));
  WireReader reader(message.bytes());
  EXPECT_THROW(decode_error(reader), DamagedMessage);
}

}  // namespace
}  // namespace tutti
