// The veto of another rank overtakes the answer that brings this rank the plan. Control messages of
// two ranks have no common order.

#include <gtest/gtest.h>

#include "tests/backends/support/world.h"
#include "tutti/core/agreement/coordinator.h"
#include "tutti/core/scheduling/scheduler.h"

namespace tutti {
namespace {

class EarlyVeto : public testing::Test {
 protected:
  EarlyVeto() {
    Scheduler::Hooks hooks;
    hooks.send = [this](int, std::span<const std::byte> message) {
      sent_.push_back(static_cast<MessageType>(message[0]));
    };
    hooks.finish = [](std::span<Entry* const>, const Error*) {};
    hooks.broken = [](const std::string& what) { ADD_FAILURE() << what; };
    hooks.log = [](const std::string&) {};
    scheduler_.emplace(options_, *ends_[1], peers_, 1, 2, statistics_, timeline_, std::move(hooks));
  }

  // Receives the answer of rank 0 that locks a plan of one tensor.
  void hear_of_plan(uint32_t id) {
    Plan::Tensor tensor;
    tensor.name = "x";
    tensor.signature.shape = Shape{4};
    WireWriter answer;
    answer.put(static_cast<uint8_t>(AnswerType::plan));
    Plan::build(id, {tensor}, options_.fusion_bytes, options_.partition_bytes).encode(answer);
    scheduler_->on_answers(WireReader(answer.bytes()), Clock::now());
  }
  // Returns whether this rank takes part in the next bucket with a veto, as the other rank did.
  bool vetoes_too() {
    scheduler_->advance(Clock::now());
    EXPECT_EQ(std::count(sent_.begin(), sent_.end(), MessageType::veto), 0) << "it is not its own";
    return scheduler_->runs().size() == 1 && scheduler_->runs()[0]->entries().empty();
  }

  const Options options_;
  const std::vector<std::unique_ptr<Backend>> ends_ =
      test::make_backends(find_backend("memory"), 2);
  Statistics statistics_;
  Timeline timeline_{1};
  std::vector<MessageType> sent_;
  Peers peers_{2};
  std::optional<Scheduler> scheduler_;
};

TEST_F(EarlyVeto, IsKeptUntilItsPlanComes) {
  scheduler_->on_veto({.plan = 1, .sequence = 0});
  hear_of_plan(1);
  EXPECT_TRUE(vetoes_too());
}

TEST_F(EarlyVeto, OfALaterBucketWaitsForIt) {
  scheduler_->on_veto({.plan = 1, .sequence = 1});
  hear_of_plan(1);
  EXPECT_FALSE(vetoes_too());
}

TEST_F(EarlyVeto, TheFirstOfTwoCounts) {
  scheduler_->on_veto({.plan = 1, .sequence = 3});
  scheduler_->on_veto({.plan = 1, .sequence = 0});
  scheduler_->on_veto({.plan = 1, .sequence = 2});
  hear_of_plan(1);
  EXPECT_TRUE(vetoes_too());
}

TEST_F(EarlyVeto, OfAnotherPlanIsNotMeant) {
  scheduler_->on_veto({.plan = 1, .sequence = 0});
  hear_of_plan(2);
  EXPECT_FALSE(vetoes_too());
}

}  // namespace
}  // namespace tutti
