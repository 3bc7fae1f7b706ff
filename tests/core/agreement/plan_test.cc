#include "tutti/core/agreement/plan.h"

#include <gtest/gtest.h>

#include "tutti/core/agreement/name_cache.h"
#include "tutti/core/scheduling/replay.h"

namespace tutti {
namespace {

Response answer(const std::string& name, int64_t count = 4) {
  Response response;
  response.name = name;
  response.signature.shape = Shape{count};
  return response;
}

std::optional<std::vector<Plan::Tensor>> run_step(PlanLearner& learner,
                                                  const std::vector<std::string>& names) {
  std::optional<std::vector<Plan::Tensor>> locked;
  for (const auto& name : names) {
    EXPECT_FALSE(locked);
    locked = learner.observe(answer(name));
  }
  return locked;
}

TEST(PlanLearner, LocksAfterEqualStepsInAnyOrder) {
  PlanLearner learner(3);
  EXPECT_FALSE(run_step(learner, {"a", "b", "c"}));
  EXPECT_FALSE(run_step(learner, {"c", "b", "a"}));
  const auto plan = run_step(learner, {"b", "a", "c"});
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->size(), 3u);
  EXPECT_EQ((*plan)[0].name, "b");  // the order in which the tensors became ready
}

// A program that numbers its tensors by the step uses such names.
TEST(PlanLearner, NamesThatNeverComeAgainAreForgotten) {
  PlanLearner learner(3);
  constexpr size_t kMost = PlanLearner::kMostTensors;
  for (size_t i = 0; i < 3 * kMost; ++i) {
    EXPECT_FALSE(learner.observe(answer("step " + std::to_string(i))));
    ASSERT_LE(learner.kept_names(), 2 * kMost);
  }
  for (size_t i = 0; i < 3 * kMost; i += 1000) {
    std::vector<std::string> missing;
    for (size_t k = i; k < i + 1000; ++k) missing.push_back("missing " + std::to_string(k));
    learner.failed(missing);
    ASSERT_LE(learner.kept_names(), 3 * kMost);
  }
  PlanLearner after(3);
  for (size_t i = 0; i < kMost + 10; ++i) after.observe(answer("step " + std::to_string(i)));
  EXPECT_FALSE(run_step(after, {"a", "b"}));
  EXPECT_FALSE(run_step(after, {"a", "b"}));
  EXPECT_FALSE(run_step(after, {"a", "b"}));
  EXPECT_TRUE(run_step(after, {"a", "b"}));
}

TEST(PlanLearner, AChangedStepStartsAgain) {
  PlanLearner learner(3);
  run_step(learner, {"a", "b"});
  run_step(learner, {"a", "b"});
  learner.observe(answer("a", 5));
  EXPECT_FALSE(learner.observe(answer("b")));
  EXPECT_FALSE(run_step(learner, {"a", "b"}));
  EXPECT_FALSE(run_step(learner, {"a", "b"}));
  EXPECT_TRUE(run_step(learner, {"a", "b"}));
}

TEST(PlanLearner, IsMoreCarefulAfterAFailureAndCutsWhereItFailed) {
  PlanLearner learner(2);
  run_step(learner, {"a", "b"});
  EXPECT_TRUE(run_step(learner, {"a", "b"}));
  learner.failed({"b"});
  for (int step = 0; step < 3; ++step) EXPECT_FALSE(run_step(learner, {"a", "b"}));
  const auto plan = run_step(learner, {"a", "b"});
  ASSERT_TRUE(plan);
  EXPECT_FALSE((*plan)[0].cut);
  EXPECT_TRUE((*plan)[1].cut);
}

TEST(PlanLearner, CutsBeforeWhatIsAskedForAfterAWait) {
  PlanLearner learner(3);
  std::optional<std::vector<Plan::Tensor>> plan;
  for (int step = 0; step < 3; ++step)
    for (const char* name : {"a", "b", "c"}) {
      auto response = answer(name);
      response.after_wait = response.name == "b";
      plan = learner.observe(response);
    }
  ASSERT_TRUE(plan);
  EXPECT_FALSE((*plan)[0].cut);
  EXPECT_TRUE((*plan)[1].cut);
  EXPECT_FALSE((*plan)[2].cut);
}

TEST(Plan, SurvivesTheWire) {
  std::vector<Plan::Tensor> tensors;
  for (int i = 0; i < 5; ++i) {
    Signature signature;
    signature.shape = Shape{100 * i};
    tensors.push_back({"t" + std::to_string(i), signature, i == 3});
  }
  const auto plan = Plan::build(7, tensors, 1000, 700);
  WireWriter writer;
  plan.encode(writer);
  WireReader reader(writer.bytes());
  const auto copy = Plan::decode(reader, 1000, 700);
  EXPECT_EQ(copy.id, 7u);
  EXPECT_EQ(copy.buckets, plan.buckets);
  WireReader damaged(writer.bytes().first(writer.size() - 3));
  EXPECT_THROW(Plan::decode(damaged, 1000, 700), Error);
}

// Each rank learns its own row counts of an alltoall, and the largest count of the others.
TEST(Plan, TellsEachRankItsRowsOfAnAlltoall) {
  Plan::Tensor tensor;
  tensor.name = "x";
  tensor.signature.kind = CollectiveKind::alltoall;
  tensor.signature.shape = Shape{6, 2};
  tensor.rows = {1, 2, 3, 0, 0, 7, 4, 5, 6};  // [from * 3 + to]
  const auto plan = Plan::build(1, {tensor}, 1000, 1000);
  EXPECT_TRUE(plan.differs_by_rank());
  const auto of_rank = plan.told_to(1, 3);
  const auto& told = of_rank.tensors[0];
  EXPECT_EQ(told.rows, (std::vector<int64_t>{2, 0, 5, 7}));
  EXPECT_EQ(told.given, (std::vector<int64_t>{0, 0, 7}));
  Request request;
  request.name = "x";
  request.signature = tensor.signature;
  request.signature.shape = Shape{7, 2};
  request.rows = {0, 0, 7};
  EXPECT_TRUE(told.fits(request, 1, 3));
  request.output_rows = 8;
  EXPECT_FALSE(told.fits(request, 1, 3));
  request.output_rows = 7;
  EXPECT_TRUE(told.fits(request, 1, 3));
  request.rows = {0, 7, 0};
  EXPECT_FALSE(told.fits(request, 1, 3));
}

// Only the root's input tensor counts, and the outputs of the other ranks.
TEST(Plan, FitsAScatterOfRootAndOthers) {
  Plan::Tensor tensor;
  tensor.name = "x";
  tensor.signature.kind = CollectiveKind::scatter;
  tensor.signature.root = 1;
  tensor.signature.shape = Shape{5, 2};
  tensor.rows = {1, 4};
  Request at_root, other;
  at_root.name = other.name = "x";
  at_root.signature = tensor.signature;
  at_root.rows = {1, 4};
  other.signature.kind = CollectiveKind::scatter;
  other.signature.root = 1;
  EXPECT_TRUE(tensor.fits(at_root, 1, 2));
  EXPECT_TRUE(tensor.fits(other, 0, 2));
  other.signature.shape = Shape{1, 2};
  other.output_rows = 1;
  EXPECT_TRUE(tensor.fits(other, 0, 2));
  other.output_rows = 2;
  EXPECT_FALSE(tensor.fits(other, 0, 2));
  at_root.rows = {2, 3};
  EXPECT_FALSE(tensor.fits(at_root, 1, 2));
  EXPECT_FALSE(tensor.fits(other, 1, 2));
}

struct ReplayTest : testing::Test {
  Entry* entry(const std::string& name, int64_t count = 4, const std::string& group = "",
               int group_size = 0) {
    auto& made = entries.emplace_back(std::make_unique<Entry>());
    made->request.name = name;
    made->request.signature.shape = Shape{count};
    made->request.signature.group = group;
    made->request.signature.group_size = group_size;
    return made.get();
  }
  Plan plan(const std::vector<Entry*>& like, int64_t fusion = 1 << 20) {
    std::vector<Plan::Tensor> tensors;
    for (const auto* e : like) tensors.push_back({e->request.name, e->request.signature, false});
    return Plan::build(1, tensors, fusion, 1 << 20);
  }
  static std::string first_of_next(const Replay& replay) {
    std::vector<Entry*> entries;
    replay.entries_of_next(entries);
    return entries.at(0)->request.name;
  }
  std::vector<std::unique_ptr<Entry>> entries;
};

TEST_F(ReplayTest, LaunchesInPlanOrderWhateverComesFirst) {
  Replay replay(plan({entry("a"), entry("b")}, 0));
  EXPECT_TRUE(replay.offer(entry("b")));
  EXPECT_FALSE(replay.ready());
  EXPECT_EQ(replay.missing(), std::vector<std::string>{"a"});
  replay.offer(entry("a"));
  ASSERT_TRUE(replay.ready());
  EXPECT_EQ(first_of_next(replay), "a");
  replay.launched();
  ASSERT_TRUE(replay.ready());
  EXPECT_EQ(first_of_next(replay), "b");
  replay.launched();
  EXPECT_FALSE(replay.ready());
  EXPECT_EQ(replay.next_sequence(), 2u);
  EXPECT_FALSE(replay.holds_waiting());
}

TEST_F(ReplayTest, StrangersAreNotTakenAndChangesDeviate) {
  Replay replay(plan({entry("a"), entry("b")}));
  EXPECT_FALSE(replay.offer(entry("z")));
  EXPECT_FALSE(replay.deviates());
  EXPECT_TRUE(replay.offer(entry("b", 5)));
  EXPECT_TRUE(replay.deviates());
  EXPECT_FALSE(replay.ready());
  EXPECT_EQ(replay.take_all().size(), 1u);
}

TEST_F(ReplayTest, AGroupStartsOnlyWhenAllMembersAreHere) {
  Replay replay(plan({entry("a", 4, "g", 2), entry("b", 4, "g", 2)}, 0));
  replay.offer(entry("a", 4, "g", 2));
  EXPECT_FALSE(replay.ready());
  EXPECT_EQ(replay.missing(), std::vector<std::string>{"b"});
  replay.offer(entry("b", 4, "g", 2));
  ASSERT_TRUE(replay.ready());
  replay.launched();
  ASSERT_TRUE(replay.ready());
}

TEST(NameCache, StaysEqualWhenFedEqually) {
  NameCache cache(2);
  Signature signature;
  const auto a = cache.remember("a", signature);
  const auto b = cache.remember("b", signature);
  EXPECT_NE(a, b);
  EXPECT_EQ(cache.remember("a", signature), a);
  cache.remember("c", signature);  // drops b, the least recently used
  EXPECT_EQ(cache.find("b", signature), -1);
  EXPECT_EQ(cache.find(b), nullptr);
  EXPECT_EQ(cache.find("a", signature), a);
  signature.shape = Shape{9};
  EXPECT_EQ(cache.find("a", signature), -1);
  EXPECT_NE(cache.remember("a", signature), a);
}

}  // namespace
}  // namespace tutti
