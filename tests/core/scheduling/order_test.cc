// A Scheduler reads no clock. Operations that were submitted at the same time are handled in the
// order of their submission, whatever their names hash to.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "tests/backends/support/world.h"
#include "tests/support/idle_driver.h"
#include "tutti/core/agreement/coordinator.h"
#include "tutti/core/scheduling/scheduler.h"

namespace tutti {
namespace {

// A scheduler of rank 1 of two. The test plays rank 0.
class SubmittedAtOnce : public testing::Test {
 protected:
  static constexpr int kNames = 40;
  const Clock::time_point now_ = Clock::time_point(std::chrono::hours(1));

  SubmittedAtOnce() {
    Scheduler::Hooks hooks;
    hooks.send = [this](int, std::span<const std::byte> message) {
      sent_.emplace_back(message.begin(), message.end());
    };
    hooks.finish = [this](std::span<Entry* const> entries, const Error*) {
      for (const Entry* entry : entries) finished_.push_back(entry->request.name);
    };
    hooks.broken = [](const std::string& what) { ADD_FAILURE() << what; };
    hooks.log = [](const std::string&) {};
    scheduler_.emplace(options_, *ends_[1], peers_, 1, 2, statistics_, timeline_, std::move(hooks));
  }
  ~SubmittedAtOnce() override { scheduler_->drop(); }

  static Entry named(int number, CollectiveKind kind) {
    Entry entry;
    entry.request.name = "tensor " + std::to_string(number);
    entry.request.signature.kind = kind;
    entry.request.signature.shape = Shape{4};
    entry.submitted = Clock::time_point(std::chrono::hours(1));
    entry.work =
        std::make_shared<WorkState>(std::make_shared<test::IdleDriver>(), entry.request.name, 1);
    return entry;
  }
  // Submits the names in an order that is neither theirs nor that of their hashes.
  void submit_all(CollectiveKind kind) {
    for (int i = 0; i < kNames; ++i) {
      auto& entry = entries_.emplace_back(named(7 * i % kNames, kind));
      entry.order = static_cast<uint64_t>(i) + 1;
      names_.push_back(entry.request.name);
      scheduler_->submit(&entry, now_);
    }
    scheduler_->flush();
  }
  // Answers all sends as rank 0 does, and makes each a prepared pair. The ids of the pairs follow
  // the order of the requests.
  void make_pairs(CollectiveKind kind = CollectiveKind::send) {
    submit_all(kind);
    WireWriter answers;
    const NameCache empty_cache(0);
    for (int i = 0; i < kNames; ++i) {
      Response response;
      response.name = names_[static_cast<size_t>(i)];
      response.signature = entries_[static_cast<size_t>(i)].request.signature;
      response.signature.kind = CollectiveKind::send;
      response.rows =
          kind == CollectiveKind::send ? std::vector<int64_t>{1, 0} : std::vector<int64_t>{0, 1};
      response.pair = i;
      answers.put(static_cast<uint8_t>(AnswerType::response));
      encode_response(answers, response, empty_cache);
    }
    scheduler_->on_answers(WireReader(answers.bytes()), now_);
    sent_.clear();
  }
  // Receives that rank 0 leaves pair 0 before its first use.
  void hear_that_pair_is_left() {
    WireWriter left;
    left.put(int64_t{0}).put(uint64_t{0});
    scheduler_->on_pair_left(0, WireReader(left.bytes()));
  }
  void submit_again(const std::string& name, CollectiveKind kind = CollectiveKind::send,
                    int root = 0) {
    auto& entry = entries_.emplace_back(named(0, kind));
    entry.request.name = name;
    entry.request.signature.root = root;
    scheduler_->submit(&entry, now_);
    scheduler_->flush();
  }
  std::vector<MessageType> types_sent() const {
    std::vector<MessageType> types;
    for (const auto& message : sent_)
      types.push_back(WireReader(message).enumeration<MessageType>(kMessageTypeCount));
    return types;
  }
  // Returns the ids of the pairs that this rank reported as left, each with the count of its
  // finished uses.
  std::vector<std::pair<int64_t, uint64_t>> pairs_told() const {
    std::vector<std::pair<int64_t, uint64_t>> told;
    for (const auto& message : sent_) {
      WireReader reader(message);
      if (reader.enumeration<MessageType>(kMessageTypeCount) != MessageType::pair_left) continue;
      const auto id = reader.get<int64_t>();
      told.emplace_back(id, reader.get<uint64_t>());
    }
    return told;
  }
  void hear_of_plan(const std::vector<std::string>& names) {
    std::vector<Plan::Tensor> tensors;
    for (const auto& name : names) {
      tensors.emplace_back().name = name;
      tensors.back().signature.shape = Shape{4};
    }
    WireWriter answer;
    answer.put(static_cast<uint8_t>(AnswerType::plan));
    Plan::build(1, tensors, options_.fusion_bytes, options_.partition_bytes).encode(answer);
    scheduler_->on_answers(WireReader(answer.bytes()), now_);
  }
  int recalled() const {
    const auto types = types_sent();
    return static_cast<int>(std::ranges::count(types, MessageType::pair_recalled));
  }
  std::vector<std::string> names_requested() {
    std::vector<std::string> names;
    requests_.clear();
    const NameCache empty_cache(0);
    for (const auto& message : sent_) {
      WireReader reader(message);
      if (reader.enumeration<MessageType>(kMessageTypeCount) != MessageType::requests) continue;
      while (!reader.at_end()) {
        Request request;
        int64_t unknown = 0;
        EXPECT_TRUE(decode_request(reader, empty_cache, request, unknown));
        names.push_back(request.join ? "join" : request.name);
        requests_.push_back(request);
      }
    }
    return names;
  }

  static Options without_numbers() {  // so that each request carries its name
    Options options;
    options.cache_capacity = 0;
    return options;
  }
  const Options options_ = without_numbers();
  const std::vector<std::unique_ptr<Backend>> ends_ =
      test::make_backends(find_backend("memory"), 2);
  Statistics statistics_;
  Timeline timeline_{1};
  std::deque<Entry> entries_;
  std::vector<std::string> names_;  // in the order of submission
  std::vector<std::vector<std::byte>> sent_;
  std::vector<std::string> finished_;
  std::vector<Request> requests_;  // the requests that names_requested() found
  Peers peers_{2};
  std::optional<Scheduler> scheduler_;
};

TEST_F(SubmittedAtOnce, IsAskedForAgainInThatOrder) {
  submit_all(CollectiveKind::allreduce);
  sent_.clear();
  WireWriter forgotten;
  forgotten.numbers(std::vector<int64_t>{-1});  // all names were requested in full
  scheduler_->on_resend(WireReader(forgotten.bytes()));
  EXPECT_EQ(names_requested(), names_);
}

TEST_F(SubmittedAtOnce, IsReportedFromTheOldest) {
  submit_all(CollectiveKind::allreduce);
  EXPECT_EQ(scheduler_->first_pending(), names_[0]);
}

TEST_F(SubmittedAtOnce, EndsInThatOrderWhenRank0Leaves) {
  submit_all(CollectiveKind::allreduce);
  peers_.on_farewell({0, {}, Error(ErrorCode::closed, "rank 0 left"), {}});
  EXPECT_TRUE(scheduler_->advance(now_));
  EXPECT_EQ(finished_, names_);
}

TEST_F(SubmittedAtOnce, EntersAPlanInThatOrder) {
  submit_all(CollectiveKind::allreduce);
  auto planned = names_;
  std::sort(planned.begin(), planned.end());
  planned.emplace_back("a tensor that does not come");
  hear_of_plan(planned);
  EXPECT_EQ(scheduler_->first_pending(), names_[0]);
  // Operations that a plan holds end in the order in which they entered it.
  peers_.on_farewell({0, {}, Error(ErrorCode::closed, "rank 0 left"), {}});
  EXPECT_TRUE(scheduler_->advance(now_));
  EXPECT_EQ(finished_, names_);
}

TEST_F(SubmittedAtOnce, PairsAreToldByTheirNumbers) {
  make_pairs();
  const auto farewell = scheduler_->farewell();
  ASSERT_EQ(farewell.pairs.size(), static_cast<size_t>(2 * kNames));
  for (int i = 0; i < kNames; ++i) {
    EXPECT_EQ(farewell.pairs[static_cast<size_t>(2 * i)], i);
    EXPECT_EQ(farewell.pairs[static_cast<size_t>(2 * i) + 1], 0) << "uses that are finished";
  }
}

TEST_F(SubmittedAtOnce, AJoinLeavesPairsByTheirNumbers) {
  make_pairs();
  Entry join;
  scheduler_->join(&join, now_);
  const auto left = pairs_told();
  ASSERT_EQ(left.size(), static_cast<size_t>(kNames));
  EXPECT_TRUE(std::is_sorted(left.begin(), left.end()));
}

// Rank 0 may still run the use before. This rank's farewell no longer lists the pair. Without this
// report rank 0 would believe that its use never ends.
TEST_F(SubmittedAtOnce, WhoEndsAPairThatItsPeerLeftSaysWhatItFinished) {
  make_pairs();
  hear_that_pair_is_left();
  EXPECT_THAT(pairs_told(), testing::IsEmpty());
  submit_again(names_[0]);
  EXPECT_THAT(pairs_told(), testing::ElementsAre(testing::Pair(0, 0)));
  EXPECT_THAT(types_sent(), testing::ElementsAre(MessageType::pair_left, MessageType::requests));
}

TEST_F(SubmittedAtOnce, WhoTakesItsUseOfAPairBackSaysWhatItFinished) {
  make_pairs();
  submit_again(names_[0]);  // use 0
  hear_that_pair_is_left();
  EXPECT_THAT(pairs_told(), testing::IsEmpty());
  scheduler_->advance(now_);
  EXPECT_THAT(pairs_told(), testing::ElementsAre(testing::Pair(0, 0)));
  EXPECT_THAT(types_sent(), testing::ElementsAre(MessageType::pair_left, MessageType::requests));
}

// Rank 0's report that it left the pair may overtake the answer that makes the pair.
TEST_F(SubmittedAtOnce, APairThatWasLeftBeforeItsAnswerCameIsAskedFor) {
  hear_that_pair_is_left();
  make_pairs();
  submit_again(names_[0]);
  EXPECT_TRUE(scheduler_->runs().empty()) << "rank 0 never launches that use";
  EXPECT_THAT(names_requested(), testing::ElementsAre(names_[0]));
}

// Rank 0 does not know that a use of the pair runs. This rank may have to request the operation
// instead. Rank 0 must not count the join before that request.
TEST_F(SubmittedAtOnce, AJoinDoesNotOvertakeTheUseOfAPair) {
  make_pairs();
  submit_again(names_[0]);
  Entry join;
  scheduler_->join(&join, now_);
  EXPECT_EQ(recalled(), 1);
  EXPECT_EQ(pairs_told().size(), static_cast<size_t>(kNames - 1))
      << "the pair whose use runs stays";
  scheduler_->advance(now_);
  EXPECT_THAT(names_requested(), testing::IsEmpty());
  hear_that_pair_is_left();
  scheduler_->advance(now_);
  EXPECT_THAT(names_requested(), testing::ElementsAre(names_[0], "join"));
  EXPECT_EQ(recalled(), 1) << "once for each use";
}

TEST_F(SubmittedAtOnce, AJoinIsAskedForWhenTheRankOfThePairHasLeft) {
  make_pairs();
  hear_of_plan({"a tensor that does not come"});
  submit_again(names_[0]);
  Entry join;
  scheduler_->join(&join, now_);
  Farewell farewell;
  farewell.plan = 1;
  farewell.joins = 1;
  peers_.on_farewell({0, farewell, Error(ErrorCode::closed, "rank 0 left"), {}});
  for (int step = 0; step < 3; ++step) scheduler_->advance(now_);
  EXPECT_THAT(finished_, testing::Contains(names_[0]));
}

// The running use takes the next message, not the receive from any rank.
TEST_F(SubmittedAtOnce, AReceiveFromAnyRankWaitsForTheUseOfAPair) {
  make_pairs(CollectiveKind::recv);
  submit_again(names_[0], CollectiveKind::recv);
  submit_again(names_[0], CollectiveKind::recv, kFromAnyRank);
  submit_again(names_[1], CollectiveKind::recv, kFromAnyRank);
  EXPECT_THAT(names_requested(), testing::ElementsAre(names_[1])) << "of that pair no use runs";
  EXPECT_EQ(recalled(), 1);
  EXPECT_THAT(pairs_told(), testing::ElementsAre(testing::Pair(1, 0)));
  scheduler_->advance(now_);
  hear_that_pair_is_left();
  scheduler_->advance(now_);
  EXPECT_THAT(names_requested(), testing::ElementsAre(names_[1], names_[0], names_[0]));
  EXPECT_EQ(requests_.back().signature.root, kFromAnyRank);
}

TEST_F(SubmittedAtOnce, AUseThatThePeerHasLaunchedIsGivenUpHereIfItIsNotLaunched) {
  make_pairs();
  WireWriter recall;
  recall.put(int64_t{0}).put(uint64_t{0});
  scheduler_->on_pair_recalled(0, WireReader(recall.bytes()));
  EXPECT_THAT(pairs_told(), testing::ElementsAre(testing::Pair(0, 0)));
  submit_again(names_[0]);
  EXPECT_THAT(names_requested(), testing::ElementsAre(names_[0]));
}

TEST_F(SubmittedAtOnce, AUseThatRunsOnBothRanksGoesOn) {
  make_pairs();
  submit_again(names_[0]);
  WireWriter recall;
  recall.put(int64_t{0}).put(uint64_t{0});
  scheduler_->on_pair_recalled(0, WireReader(recall.bytes()));
  EXPECT_THAT(pairs_told(), testing::IsEmpty());
  EXPECT_EQ(scheduler_->runs().size(), 1u);
}

TEST_F(SubmittedAtOnce, StartsWhenTheCallerSaysThatItIs) {
  scheduler_->on_veto({.plan = 1, .sequence = 0});
  hear_of_plan({"x"});
  const auto later = now_ + std::chrono::hours(2);
  scheduler_->advance(later);
  ASSERT_EQ(scheduler_->runs().size(), 1u);
  EXPECT_EQ(scheduler_->runs()[0]->started(), later);
}

}  // namespace
}  // namespace tutti
