// Waiting threads, a blocking call and the background thread take turns to drive the engine.

#include "tutti/core/threads/turns.h"

#include <gtest/gtest.h>

#include <memory>

#include "tests/explore/toy_engine.h"

namespace tutti::explore {
namespace {

// Each message of a peer ends a Work.
class TwoWorks : public ToyEngine {
 public:
  Polled::Atomic<int> done{0};

  void wait_for(int works) {
    turns.drive(
        *this, [&] { return done >= works; }, kNever);
    require(done >= works, "a driver has left before its Work was done");
  }
  void end() {
    turns.end();
    require(turns.ended_by(kNever), "the background thread has not ended");
  }
  void count_call() {
    Explored::writes(&calls_);
    ++calls_;
  }
  bool pending() const override { return taken() < 2; }

 protected:
  bool look() override {
    if (!take_arrived()) return false;
    done = taken();
    return true;
  }

 private:
  int calls_ = 0;
};

TEST(ExploredTurns, ADriverThatLeavesHandsTheTokenOn) {
  expect_none(explore([](Model& model) {
    const auto engine = std::make_shared<TwoWorks>();
    engine->turns.begin();
    model.thread("background", [engine] { engine->turns.serve(*engine); });
    model.thread("first driver", [engine] { engine->wait_for(1); });
    model.thread("second driver", [engine] {
      engine->wait_for(2);
      engine->end();
    });
    model.thread("peer", [engine] {
      engine->arrive();
      engine->arrive();
    });
  }));
}

// The Work needs another rank, which is in a blocking call. So it needs this rank's blocking call
// too, for which the driver must give up the token.
TEST(ExploredTurns, ADriverStepsAsideForABlockingCall) {
  expect_none(explore([](Model& model) {
    const auto engine = std::make_shared<TwoWorks>();
    const auto is_called = std::make_shared<Polled::Atomic<bool>>(false);
    engine->turns.begin();
    model.thread("background", [engine] { engine->turns.serve(*engine); });
    model.thread("driver", [engine] {
      engine->wait_for(1);
      engine->end();
    });
    model.thread("blocking call", [engine, is_called] {
      if (!engine->turns.try_take()) engine->turns.claim();
      engine->count_call();
      *is_called = true;
      is_called->notify_all();
      engine->turns.give();
    });
    model.thread("peer", [engine, is_called] {
      is_called->wait(false);
      engine->arrive();
    });
  }));
}

}  // namespace
}  // namespace tutti::explore
