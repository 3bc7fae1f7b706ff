// Tests of a Run by itself: its states, and the buffers that it gives its backend. No data is
// moved.

#include "tutti/core/scheduling/run.h"

#include <gtest/gtest.h>

#include "tests/backends/support/forwarding_backend.h"
#include "tests/backends/support/world.h"
#include "tests/support/idle_driver.h"

namespace tutti {
namespace {

class Pending final : public Operation {
 public:
  OperationState advance() override { return OperationState::pending; }
  void release() override {}
  void cancel() override { ++cancels; }
  int cancels = 0;
};

/// Remembers the buffers of the last operation, which never ends.
class Remembers final : public test::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  OperationPtr start(const Collective& collective, const Launch&) override {
    input = collective.input;
    output = collective.output;
    return OperationPtr(&operation);
  }
  Pending operation;
  const std::byte* input = nullptr;
  const std::byte* output = nullptr;
};

// Checks the buffers that rank 0, the root of three ranks, gives its backend if its input is a row
// of its output.
void gather_from_row(CollectiveKind kind, size_t row) {
  SCOPED_TRACE(testing::Message() << to_string(kind) << " of row " << row);
  constexpr int kSize = 3;
  Remembers backend(std::move(test::make_backends(find_backend("memory"), 1)[0]));
  RegionPool pool(backend);
  std::vector<float> all{0, 0, 1, 1, 2, 2};
  Entry entry;
  entry.output = TensorView(all);
  entry.input = TensorView(std::span(all).subspan(2 * row, 2));
  entry.work = std::make_shared<WorkState>(std::make_shared<test::IdleDriver>(), "x", 1);
  entry.request.signature.kind = kind;
  entry.request.signature.shape = Shape{1, 2};
  Response response;
  response.signature = entry.request.signature;
  response.rows = {1, 1, 1};
  auto run = Run::moved(1, pool, {&response, 1}, {}, {&entry}, 0, kSize);
  run->start(backend, 0, 0, {});
  EXPECT_EQ(backend.output, entry.output.data());
  if (row == 0) {
    EXPECT_EQ(backend.input, entry.input.data()) << "it lies where it belongs";
    return;
  }
  // The other ranks' rows may be written there before this rank's row is read.
  EXPECT_NE(backend.input, entry.input.data());
  const auto* copied = reinterpret_cast<const float*>(backend.input);
  EXPECT_EQ(copied[0], static_cast<float>(row));
  EXPECT_EQ(copied[1], static_cast<float>(row));
}

TEST(MovedRun, AnInputAtAnotherRowOfTheOutputIsKeptApart) {
  for (const auto kind : {CollectiveKind::gather, CollectiveKind::allgather})
    for (const size_t row : {0, 1, 2}) gather_from_row(kind, row);
}

// The output has no rows and no bytes. So it may well lie directly before the input in memory.
TEST(MovedRun, ARankThatOnlyGivesToAGatherGivesItsInputItself) {
  constexpr int kSize = 3, kRank = 2;
  Remembers backend(std::move(test::make_backends(find_backend("memory"), 1)[0]));
  RegionPool pool(backend);
  std::vector<float> memory{0, 0, 1, 1};
  Entry entry;
  entry.output =
      TensorView(reinterpret_cast<std::byte*>(memory.data()), Shape{0, 2}, DataType::f32);
  entry.input = TensorView(std::span(memory).subspan(2, 2));
  entry.work = std::make_shared<WorkState>(std::make_shared<test::IdleDriver>(), "x", 1);
  entry.request.signature.kind = CollectiveKind::gather;
  entry.request.signature.shape = Shape{1, 2};
  Response response;
  response.signature = entry.request.signature;
  response.rows = {1, 1, 1};
  auto run = Run::moved(1, pool, {&response, 1}, {}, {&entry}, kRank, kSize);
  run->start(backend, 0, 0, {});
  EXPECT_EQ(backend.input, entry.input.data());
  EXPECT_EQ(pool.allocations(), 0u);
}

class RunStates : public testing::Test {
 protected:
  RunStates() {
    Response response;
    response.signature.kind = CollectiveKind::barrier;
    run_ = tutti::Run::moved(1, pool_, {&response, 1}, {}, {&entry_}, 0, 2);
    EXPECT_EQ(run_->state(), RunState::waiting);
    run_->start(backend_, 0, 0, now_);
    EXPECT_EQ(run_->state(), RunState::running);
    EXPECT_EQ(run_->started(), now_);
  }
  const Clock::time_point now_{std::chrono::hours(1)};
  Remembers backend_{std::move(test::make_backends(find_backend("memory"), 1)[0])};
  RegionPool pool_{backend_};
  Entry entry_;
  std::unique_ptr<tutti::Run> run_;
};

TEST_F(RunStates, WhatIsGivenUpIsCancelledAtTheBackend) {
  run_->doom(1);
  EXPECT_EQ(run_->state(), RunState::doomed);
  EXPECT_EQ(run_->doomed_by(), 1);
  EXPECT_TRUE(run_->is_given_up());
  EXPECT_EQ(backend_.operation.cancels, 1);
  run_->cancel();
  EXPECT_EQ(run_->state(), RunState::cancelled) << "it is asked for again";
  EXPECT_EQ(backend_.operation.cancels, 2);
  run_->end();
  EXPECT_EQ(run_->state(), RunState::over);
}

TEST_F(RunStates, AFailureWithoutACauseIsUnexplainedSinceItWasFirstSeen) {
  EXPECT_EQ(run_->wait_for_cause(now_), now_);
  EXPECT_EQ(run_->state(), RunState::unexplained);
  EXPECT_FALSE(run_->is_given_up());
  EXPECT_EQ(run_->wait_for_cause(now_ + std::chrono::seconds(1)), now_);
  run_->doom(1);
  EXPECT_EQ(run_->state(), RunState::doomed) << "the cause has come";
}

TEST_F(RunStates, ARepeatedRunBeginsAnew) {
  run_->set_origin({Origin::Kind::planned, 3});
  run_->doom(1);
  run_->end();
  run_->repeat(5);
  EXPECT_EQ(run_->state(), RunState::waiting);
  EXPECT_EQ(run_->doomed_by(), -1);
  EXPECT_TRUE(run_->is_planned());
  EXPECT_EQ(run_->origin().number, 3u);
}

}  // namespace
}  // namespace tutti
