#include "tutti/core/agreement/negotiator.h"

#include <gtest/gtest.h>

#include <random>

namespace tutti {
namespace {

Request request(const std::string& name, Shape shape = {4}, DataType dtype = DataType::f32) {
  Request request;
  request.name = name;
  request.signature.shape = std::move(shape);
  request.signature.dtype = request.signature.wire = dtype;
  return request;
}

const auto kAsked = Clock::time_point();

Request join_request() {
  Request request;
  request.join = true;
  return request;
}

TEST(Negotiator, AnswersWhenAllRanksHaveAsked) {
  Negotiator negotiator(3);
  negotiator.add(2, request("a"), kAsked);
  negotiator.add(0, request("a"), kAsked);
  EXPECT_TRUE(negotiator.take_ready().empty());
  negotiator.add(1, request("a"), kAsked);
  const auto ready = negotiator.take_ready();
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].name, "a");
  EXPECT_FALSE(ready[0].error);
  EXPECT_TRUE(negotiator.idle());
}

TEST(Negotiator, AnyOrderOfRequestsGivesTheSameAnswers) {
  constexpr int kRanks = 4, kNames = 20;
  for (unsigned seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::vector<std::pair<int, int>> calls;
    for (int rank = 0; rank < kRanks; ++rank)
      for (int name = 0; name < kNames; ++name) calls.emplace_back(rank, name);
    std::shuffle(calls.begin(), calls.end(), random);
    Negotiator negotiator(kRanks);
    std::vector<std::string> answered;
    for (const auto& [rank, name] : calls) {
      negotiator.add(rank, request("t" + std::to_string(name)), kAsked);
      for (const auto& response : negotiator.take_ready()) answered.push_back(response.name);
    }
    std::sort(answered.begin(), answered.end());
    EXPECT_EQ(answered.size(), static_cast<size_t>(kNames));
    EXPECT_EQ(std::unique(answered.begin(), answered.end()), answered.end());
    EXPECT_TRUE(negotiator.idle());
  }
}

// A rank may wait before the first tensor of a step, which can be another tensor on each rank. Only
// a wait of all ranks before the same tensor marks its answer.
TEST(Negotiator, AWaitThatAllRanksHadIsTold) {
  Negotiator negotiator(2);
  for (const char* name : {"a", "b", "c"})
    for (int rank = 0; rank < 2; ++rank) {
      auto asked = request(name);
      asked.after_wait = asked.name == "c" || (rank == 0 && asked.name == "b");
      negotiator.add(rank, asked, kAsked);
    }
  const auto ready = negotiator.take_ready();
  ASSERT_EQ(ready.size(), 3u);
  EXPECT_FALSE(ready[0].after_wait);
  EXPECT_FALSE(ready[1].after_wait);
  EXPECT_TRUE(ready[2].after_wait);
}

TEST(Negotiator, ShapeMismatchNamesWhoSaidWhat) {
  Negotiator negotiator(3);
  negotiator.add(0, request("conv1.weight", {6, 1, 5, 5}), kAsked);
  negotiator.add(1, request("conv1.weight", {6, 1, 5, 5}), kAsked);
  negotiator.add(2, request("conv1.weight", {6, 1, 3, 3}), kAsked);
  const auto ready = negotiator.take_ready();
  ASSERT_EQ(ready.size(), 1u);
  ASSERT_TRUE(ready[0].error);
  EXPECT_STREQ(ready[0].error->what(),
               "\"conv1.weight\": ranks 0 1 sent f32[6,1,5,5], rank 2 sent f32[6,1,3,3]; all ranks "
               "must submit the same shape. Nothing was changed.");
  EXPECT_EQ(ready[0].error->rank(), 2);
  EXPECT_EQ(ready[0].error->tensor(), "conv1.weight");
  EXPECT_EQ(ready[0].error->code(), ErrorCode::mismatch);
}

// Every field that ranks must agree on is changed on rank 1 only.
TEST(Negotiator, EveryDisagreementIsAnError) {
  struct Case {
    const char* what;
    CollectiveKind kind;
    void (*change)(Request&);
  };
  const Case cases[] = {
      {"kind of operation", CollectiveKind::allreduce,
       [](Request& r) { r.signature.kind = CollectiveKind::broadcast; }},
      {"dtype", CollectiveKind::allreduce, [](Request& r) { r.signature.dtype = DataType::f64; }},
      {"shape", CollectiveKind::broadcast, [](Request& r) { r.signature.shape = {5}; }},
      {"shape, except for the first extent", CollectiveKind::allgather,
       [](Request& r) {
         r.signature.shape = {4, 2};
       }},
      {"op", CollectiveKind::allreduce, [](Request& r) { r.signature.op = ReduceOp::max; }},
      {"prescale and postscale", CollectiveKind::reduce_scatter,
       [](Request& r) { r.signature.postscale = 2; }},
      {"wire type", CollectiveKind::allreduce,
       [](Request& r) { r.signature.wire = DataType::bf16; }},
      {"root", CollectiveKind::broadcast, [](Request& r) { r.signature.root = 1; }},
      {"device", CollectiveKind::allreduce,
       [](Request& r) { r.signature.placement = DeviceKind::cuda; }},
      {"priority", CollectiveKind::allreduce, [](Request& r) { r.signature.priority = 1; }},
      {"use of the result (gradients alone or an update)", CollectiveKind::allreduce,
       [](Request& r) { r.signature.updates = true; }},
      {"place and layout of memory", CollectiveKind::allreduce,
       [](Request& r) { r.signature.layout = 7; }},
      {"place and layout of memory", CollectiveKind::reduce,
       [](Request& r) { r.signature.place = 64; }},
      {"group", CollectiveKind::allreduce,
       [](Request& r) { r.signature.group = "g", r.signature.group_size = 1; }},
  };
  for (const auto& test : cases) {
    SCOPED_TRACE(test.what);
    Negotiator negotiator(2);
    auto base = request("x");
    base.signature.kind = test.kind;
    auto other = base;
    test.change(other);
    negotiator.add(0, base, kAsked);
    negotiator.add(1, other, kAsked);
    const auto ready = negotiator.take_ready();
    ASSERT_EQ(ready.size(), 1u);
    ASSERT_TRUE(ready[0].error);
    EXPECT_NE(std::string(ready[0].error->what()).find(std::string("the same ") + test.what),
              std::string::npos)
        << ready[0].error->what();
    EXPECT_EQ(ready[0].error->rank(), 1);
  }
}

TEST(Negotiator, GatheredKindsMayDifferInRows) {
  Negotiator negotiator(2);
  for (int rank = 0; rank < 2; ++rank) {
    auto r = request("x", {rank + 1, 3});
    r.signature.kind = CollectiveKind::allgather;
    negotiator.add(rank, r, kAsked);
  }
  const auto ready = negotiator.take_ready();
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_FALSE(ready[0].error);
  EXPECT_EQ(ready[0].rows, (std::vector<int64_t>{1, 2}));
}

TEST(Negotiator, GroupsComeTogetherOrNotAtAll) {
  Negotiator negotiator(2);
  const auto member = [](const std::string& name, Shape shape = {4}) {
    auto r = request(name, std::move(shape));
    r.signature.group = "g";
    r.signature.group_size = 2;
    return r;
  };
  negotiator.add(0, member("a"), kAsked);
  negotiator.add(0, member("b"), kAsked);
  negotiator.add(1, member("a"), kAsked);
  EXPECT_TRUE(negotiator.take_ready().empty());
  negotiator.add(1, member("b", {5}), kAsked);
  const auto ready = negotiator.take_ready();
  ASSERT_EQ(ready.size(), 2u);
  EXPECT_TRUE(ready[0].error);
  EXPECT_TRUE(ready[1].error);
}

TEST(Negotiator, JoinedRanksAreCountedOut) {
  Negotiator negotiator(3);
  const Request join = join_request();
  negotiator.add(1, request("a"), kAsked);
  negotiator.add(2, join, kAsked);
  negotiator.add(0, request("a"), kAsked);
  auto ready = negotiator.take_ready();
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].joined, (std::vector<int64_t>{2}));
  EXPECT_FALSE(ready[0].error);
  auto gather = request("b");
  gather.signature.kind = CollectiveKind::allgather;
  negotiator.add(0, gather, kAsked);
  negotiator.add(1, gather, kAsked);
  ready = negotiator.take_ready();
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_TRUE(ready[0].error);
  negotiator.add(1, join, kAsked);
  negotiator.add(0, join, kAsked);
  ready = negotiator.take_ready();
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_TRUE(ready[0].all_joined);
  EXPECT_EQ(ready[0].rows, (std::vector<int64_t>{0}));
  EXPECT_EQ(negotiator.joined_count(), 0);
}

// A joined rank neither sends nor receives, so the other rank of the pair gets an error
// immediately. With two ranks, its request and the join together come from all ranks, but they do
// not match each other.
TEST(Negotiator, APairWhoseOtherRankHasJoinedIsAMismatch) {
  for (const int size : {2, 3})
    for (const bool sends : {true, false})
      for (const bool joins_first : {true, false}) {
        Negotiator negotiator(size);
        const Request join = join_request();
        auto alone = request("p");
        alone.signature.kind = sends ? CollectiveKind::send : CollectiveKind::recv;
        alone.signature.root = 1;
        if (joins_first) negotiator.add(1, join, kAsked);
        negotiator.add(0, alone, kAsked);
        if (!joins_first) negotiator.add(1, join, kAsked);
        const auto ready = negotiator.take_ready();
        ASSERT_EQ(ready.size(), 1u);
        ASSERT_TRUE(ready[0].error);
        EXPECT_EQ(ready[0].error->code(), ErrorCode::mismatch);
        EXPECT_EQ(ready[0].error->rank(), 1);
        EXPECT_EQ(ready[0].rows, (std::vector<int64_t>{0, 0})) << "it is about rank 0 alone";
        EXPECT_EQ(ready[0].signature.root, 1);
        ASSERT_EQ(negotiator.waiting().size(), 1u);
        EXPECT_EQ(negotiator.waiting()[0].name, "join");
      }
}

Request pair_request(CollectiveKind kind, int peer) {
  auto asked = request("p");
  asked.signature.kind = kind;
  asked.signature.root = peer;
  return asked;
}

// The sender knows its send by the rank that receives it, even if that rank had asked to receive
// from any rank.
TEST(Negotiator, ASendToARankThatLeftEndsUnderItsOwnRoot) {
  Negotiator negotiator(3);
  negotiator.add(1, pair_request(CollectiveKind::recv, kFromAnyRank), kAsked);
  negotiator.leave(1, Error(ErrorCode::peer_left, "rank 1 left"), 0);
  negotiator.add(0, pair_request(CollectiveKind::send, 1), kAsked);
  const auto ready = negotiator.take_ready();
  ASSERT_EQ(ready.size(), 1u);
  ASSERT_TRUE(ready[0].error);
  EXPECT_EQ(ready[0].rows, (std::vector<int64_t>{0, 0}));
  EXPECT_EQ(ready[0].signature.root, 1);
  EXPECT_TRUE(negotiator.idle());
}

TEST(Negotiator, AReceiveFromAnyRankMeetsNoSendOfAnotherName) {
  Negotiator negotiator(3);
  auto other = pair_request(CollectiveKind::send, 1);
  other.name = "another";
  negotiator.add(1, pair_request(CollectiveKind::recv, kFromAnyRank), kAsked);
  negotiator.add(0, other, kAsked);
  EXPECT_TRUE(negotiator.take_ready().empty());
  negotiator.add(2, pair_request(CollectiveKind::send, 1), kAsked);
  const auto ready = negotiator.take_ready();
  ASSERT_EQ(ready.size(), 1u) << "rank 0's send has not taken it";
  EXPECT_EQ(ready[0].rows, (std::vector<int64_t>{2, 1}));
  EXPECT_FALSE(ready[0].error);
}

TEST(Negotiator, AReceiveFromAnyRankMeetsASendThatComesAfterItsJoin) {
  Negotiator negotiator(3);
  const Request join = join_request();
  negotiator.add(1, pair_request(CollectiveKind::recv, kFromAnyRank), kAsked);
  negotiator.add(1, join, kAsked);
  negotiator.add(0, pair_request(CollectiveKind::send, 1), kAsked);
  const auto ready = negotiator.take_ready();
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_FALSE(ready[0].error);
  EXPECT_EQ(ready[0].rows, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(ready[0].signature.root, kFromAnyRank);
}

TEST(Negotiator, WhatAGroupHadCollectedEndsWithTheRankThatLeft) {
  Negotiator negotiator(2);
  auto member = request("a");
  member.signature.group = "g";
  member.signature.group_size = 2;
  negotiator.add(0, member, kAsked);
  negotiator.add(1, member, kAsked);
  EXPECT_TRUE(negotiator.take_ready().empty());
  negotiator.leave(1, Error(ErrorCode::peer_left, "rank 1 left"), 0);
  const auto ready = negotiator.take_ready();
  ASSERT_EQ(ready.size(), 1u);
  ASSERT_TRUE(ready[0].error);
  EXPECT_EQ(ready[0].error->code(), ErrorCode::peer_left);
  EXPECT_TRUE(negotiator.idle());
}

TEST(Negotiator, SendAndRecvNeedTheirTwoRanksOnly) {
  Negotiator negotiator(4);
  auto send = request("p");
  send.signature.kind = CollectiveKind::send;
  send.signature.root = 3;
  auto recv = send;
  recv.signature.kind = CollectiveKind::recv;
  recv.signature.root = 1;
  negotiator.add(3, recv, kAsked);
  negotiator.add(1, send, kAsked);
  auto ready = negotiator.take_ready();
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_FALSE(ready[0].error);
  EXPECT_EQ(ready[0].rows, (std::vector<int64_t>{1, 3}));
  // Two pairs may use one name at the same time.
  auto other = send;
  other.signature.root = 2;
  negotiator.add(1, send, kAsked);
  negotiator.add(0, other, kAsked);
  EXPECT_TRUE(negotiator.take_ready().empty());
}

TEST(Negotiator, PrioritiesGoFirstAmongWhatIsReady) {
  Negotiator negotiator(1);
  auto low = request("low");
  auto high = request("high");
  high.signature.priority = 5;
  negotiator.add(0, low, kAsked);
  negotiator.add(0, high, kAsked);
  const auto ready = negotiator.take_ready();
  ASSERT_EQ(ready.size(), 2u);
  EXPECT_EQ(ready[0].name, "high");
}

TEST(Negotiator, WaitingNamesPresentAndMissing) {
  Negotiator negotiator(3);
  negotiator.add(1, request("a"), kAsked);
  const auto waiting = negotiator.waiting();
  ASSERT_EQ(waiting.size(), 1u);
  EXPECT_EQ(waiting[0].present, (std::vector<int>{1}));
  EXPECT_EQ(waiting[0].missing, (std::vector<int>{0, 2}));
  negotiator.forget("a");
  EXPECT_TRUE(negotiator.idle());
}

TEST(Negotiator, WhatWaitsSinceOneTimeIsToldInTheOrderOfItsRequests) {
  constexpr int kNames = 40;
  Negotiator negotiator(2);
  std::vector<std::string> asked, told;
  for (int i = 0; i < kNames; ++i) {
    asked.push_back("tensor " + std::to_string(7 * i % kNames));
    auto one = request(asked.back());
    if (i % 8 == 0) {
      one.signature.kind = CollectiveKind::recv;
      one.signature.root = kFromAnyRank;
    }
    negotiator.add(1, one, kAsked);
  }
  for (const auto& waiting : negotiator.waiting()) told.push_back(waiting.name);
  EXPECT_EQ(told, asked);
}

// A join waits as long as the other ranks go on. Its waiting time counts from the last request of
// any rank.
TEST(Negotiator, AJoinWaitsForThoseThatHaveNotJoined) {
  Negotiator negotiator(3);
  const Request join = join_request();
  negotiator.add(1, join, kAsked);
  EXPECT_FALSE(negotiator.idle());
  const auto later = kAsked + std::chrono::seconds(5);
  for (const int rank : {0, 2}) negotiator.add(rank, request("a"), later);
  EXPECT_EQ(negotiator.take_ready().size(), 1u);
  const auto waiting = negotiator.waiting();
  ASSERT_EQ(waiting.size(), 1u);
  EXPECT_EQ(waiting[0].name, "join");
  EXPECT_EQ(waiting[0].present, (std::vector<int>{1}));
  EXPECT_EQ(waiting[0].missing, (std::vector<int>{0, 2}));
  EXPECT_EQ(waiting[0].since, later);
  for (const int rank : {0, 2}) negotiator.add(rank, join, later);
  EXPECT_EQ(negotiator.take_ready().size(), 1u);
  EXPECT_TRUE(negotiator.idle());
}

// The join has failed on the rank that asked for it, so no rank waits for it.
TEST(Negotiator, AJoinIsNotAwaitedOnceOneLeftThatHadNotJoined) {
  Negotiator negotiator(3);
  const Request join = join_request();
  negotiator.add(1, join, kAsked);
  negotiator.leave(2, Error(ErrorCode::peer_left, "rank 2 left"), 0);
  EXPECT_TRUE(negotiator.idle());
  EXPECT_TRUE(negotiator.waiting().empty());
  // Rank 1 may then send and receive again. Another join of it fails as well.
  negotiator.add(1, join, kAsked);
  auto half = request("p");
  half.signature.kind = CollectiveKind::send;
  half.signature.root = 0;
  negotiator.add(1, half, kAsked);
  half.signature.kind = CollectiveKind::recv;
  half.signature.root = 1;
  negotiator.add(0, half, kAsked);
  const auto ready = negotiator.take_ready();
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_FALSE(ready[0].error);
}

// A rank that leaves reports in its farewell how many joins it took part in. The other ranks go by
// that count.
TEST(Negotiator, AJoinThatTheFarewellDoesNotCountIsNone) {
  Negotiator negotiator(3);
  const Request join = join_request();
  for (const int rank : {1, 2}) negotiator.add(rank, join, kAsked);
  negotiator.leave(2, Error(ErrorCode::peer_left, "rank 2 left"), 0);
  negotiator.add(0, pair_request(CollectiveKind::send, 1), kAsked);
  EXPECT_TRUE(negotiator.take_ready().empty()) << "rank 1 may still receive";
  negotiator.add(1, pair_request(CollectiveKind::recv, 0), kAsked);
  EXPECT_EQ(negotiator.take_ready().size(), 1u);
  EXPECT_TRUE(negotiator.idle());
}

TEST(Negotiator, AJoinThatTheFarewellCountsIsOneThoughItNeverCame) {
  Negotiator negotiator(2);
  const Request join = join_request();
  negotiator.leave(1, Error(ErrorCode::peer_left, "rank 1 left"), 1);
  negotiator.add(0, join, kAsked);
  const auto ready = negotiator.take_ready();
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_TRUE(ready[0].all_joined);
  EXPECT_TRUE(negotiator.idle());
}

TEST(Negotiator, NoOperationOfAllRanksEndsAfterAJoinedRankLeft) {
  Negotiator negotiator(3);
  const Request join = join_request();
  negotiator.add(2, join, kAsked);
  negotiator.add(1, request("a"), kAsked);
  negotiator.leave(2, Error(ErrorCode::peer_left, "rank 2 left"), 1);
  const auto ready = negotiator.take_ready();
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_TRUE(ready[0].error);
}

// Ranks that have not asked for the operation by then never ask for it.
TEST(Negotiator, WhatARankAskedForBeforeItLeftFailsOnTheOthers) {
  Negotiator negotiator(3);
  for (const int rank : {0, 1}) negotiator.add(rank, request("a"), kAsked);
  EXPECT_TRUE(negotiator.take_ready().empty());
  negotiator.leave(1, Error(ErrorCode::peer_left, "rank 1 left"), 0);
  const auto ready = negotiator.take_ready();
  ASSERT_EQ(ready.size(), 1u);
  ASSERT_TRUE(ready[0].error);
  EXPECT_STREQ(ready[0].error->what(), "rank 1 left");
  EXPECT_TRUE(negotiator.idle());
}

}  // namespace
}  // namespace tutti
