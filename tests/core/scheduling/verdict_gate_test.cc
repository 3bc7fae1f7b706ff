// A gate asks all ranks whether an operation of a plan runs, and then starts it. In this test an
// operation ends when the test says so.

#include "tutti/core/scheduling/verdict_gate.h"

#include <gtest/gtest.h>

#include <deque>

#include "tests/backends/support/forwarding_backend.h"
#include "tests/backends/support/world.h"

namespace tutti {
namespace {

class ByHand final : public Operation {
 public:
  OperationState advance() override { return is_cancelled ? OperationState::failed : state; }
  void release() override {}
  void cancel() override { is_cancelled = true; }
  OperationState state = OperationState::pending;
  bool is_cancelled = false;
};

class StartsByHand final : public test::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  OperationPtr start(const Collective& collective, const Launch& launch) override {
    kinds.push_back(collective.kind);
    launches.push_back(launch);
    return OperationPtr(&operations.emplace_back());
  }
  std::deque<ByHand> operations;
  std::vector<CollectiveKind> kinds;
  std::vector<Launch> launches;
};

class VerdictGateTest : public testing::Test {
 protected:
  void start(uint32_t verdict = 0) {
    Collective collective;
    collective.kind = CollectiveKind::broadcast;
    Launch launch;
    launch.tag = 40;
    launch.verdict = verdict;
    gate_.start(backend_, collective, launch);
  }
  StartsByHand backend_{std::move(test::make_backends(find_backend("memory"), 1)[0])};
  VerdictGate gate_;
};

TEST_F(VerdictGateTest, TheOperationStartsWhenAllRanksRunIt) {
  start();
  EXPECT_EQ(gate_.advance(), OperationState::pending);
  ASSERT_EQ(backend_.kinds.size(), 1u);
  EXPECT_EQ(backend_.kinds[0], CollectiveKind::allreduce);
  EXPECT_EQ(backend_.launches[0].tag, 40u);
  backend_.operations[0].state = OperationState::done;
  EXPECT_EQ(gate_.advance(), OperationState::pending);
  ASSERT_EQ(backend_.kinds.size(), 2u);
  EXPECT_EQ(backend_.kinds[1], CollectiveKind::broadcast);
  EXPECT_EQ(backend_.launches[1].tag, 41u);
  backend_.operations[1].state = OperationState::done;
  EXPECT_EQ(gate_.advance(), OperationState::done);
}

TEST_F(VerdictGateTest, AVetoEndsItWithoutTheOperation) {
  start(1);
  EXPECT_EQ(backend_.launches[0].verdict, 1u);
  backend_.operations[0].state = OperationState::vetoed;
  EXPECT_EQ(gate_.advance(), OperationState::vetoed);
  EXPECT_EQ(backend_.kinds.size(), 1u);
}

// The other ranks may have passed the gate. So the operation is started, and the others learn of
// its end.
TEST_F(VerdictGateTest, ACancelBeforeTheGateOpensReachesTheOperationBehind) {
  start();
  backend_.operations[0].state = OperationState::done;
  gate_.cancel();
  backend_.operations[0].is_cancelled = false;  // the gate had ended before the cancel
  EXPECT_EQ(gate_.advance(), OperationState::failed);
  ASSERT_EQ(backend_.operations.size(), 2u);
  EXPECT_TRUE(backend_.operations[1].is_cancelled);
}

TEST_F(VerdictGateTest, ACancelBehindTheGateReachesTheOperation) {
  start();
  backend_.operations[0].state = OperationState::done;
  gate_.advance();
  gate_.cancel();
  EXPECT_TRUE(backend_.operations[1].is_cancelled);
}

TEST_F(VerdictGateTest, NextTimeNothingIsCancelled) {
  start();
  gate_.cancel();
  gate_.release();
  start();
  backend_.operations[1].state = OperationState::done;
  EXPECT_EQ(gate_.advance(), OperationState::pending);
  EXPECT_FALSE(backend_.operations[2].is_cancelled);
}

}  // namespace
}  // namespace tutti
