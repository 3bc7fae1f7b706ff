// Blocking calls count themselves while one thread drives and one reads the count.

#include "tutti/core/threads/tally.h"

#include <gtest/gtest.h>

#include <memory>

#include "tests/explore/toy_engine.h"

namespace tutti::explore {
namespace {

struct Counters {
  int calls = 0;
};

class Counting : public ToyEngine {
 public:
  TallyOf<Counters, Polled> tally;
  Polled::Atomic<int> ended{0};
  Polled::Atomic<bool> is_done{false};

  void make_a_call() {
    if (!turns.try_take()) turns.claim();
    Explored::writes(&calls_);
    ++calls_;
    tally.blocking_ended();
    turns.give();
    ++ended;
  }
  void read() {
    const int before = ended;
    const auto counters = tally.read(turns, [&] { publish(); });
    require(counters.calls >= before, "a call that is over is not counted");
  }
  // Ends the Work, as a callback does.
  void end_the_work() {
    is_done = true;
    turns.wake_drivers();
    turns.wake();
  }
  bool step() override {
    tally.catch_up([&] { publish(); });
    return ToyEngine::step();
  }
  void publish() override {
    tally.publish([&](Counters& published) {
      Explored::reads(&calls_);
      published.calls = calls_;
    });
  }

 private:
  int calls_ = 0;
};

TEST(ExploredTally, ACallThatIsOverIsCounted) {
  expect_none(explore([](Model& model) {
    const auto engine = std::make_shared<Counting>();
    model.thread("blocking caller", [engine] {
      engine->make_a_call();
      engine->make_a_call();
    });
    model.thread("driver", [engine] {
      engine->turns.drive(
          *engine, [&] { return engine->is_done.load(); }, kNever);
    });
    model.thread("reader", [engine] {
      engine->read();
      engine->read();
      engine->end_the_work();
    });
  }));
}

}  // namespace
}  // namespace tutti::explore
