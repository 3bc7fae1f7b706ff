// The turns (the right to drive the engine) end while threads drive, call, sleep or hang.

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/explore/toy_engine.h"
#include "tutti/core/engine/ending.h"
#include "tutti/core/threads/hand_over.h"

namespace tutti::explore {
namespace {

using Life = TurnsOf<Polled>::Life;

// A Work that only a close ends.
class Closed : public ToyEngine {
 public:
  Polled::Atomic<bool> is_done{false};
  std::shared_ptr<uint32_t> raised = std::make_shared<uint32_t>(0);

  void wait_for_the_work() {
    turns.drive(
        *this, [&] { return is_done.load(); }, kNever);
    require(is_done, "a driver has left before its Work was done");
  }
  // Works like Engine::raise_when_over().
  void raise_when_over() {
    const auto lock = hand_over_.lock();
    Explored::writes(&ending_);
    ending_.add_word(raised);
    if (!hand_over_.lets_in()) ending_.raise_all();
  }
  // Works like Engine::close(). Returns false if a thread hangs.
  bool close(Clock::time_point deadline) {
    {
      const auto lock = hand_over_.lock();
      require(hand_over_.close(lock), "closed before");
      hand_over_.offered(lock).is_closing = true;
      Explored::writes(&ending_);
      ending_.raise_all();
    }
    turns.end();
    if (!turns.ended_by(deadline) || !turns.take_by(deadline)) return false;
    while (!is_over()) step();
    turns.give();
    return true;
  }
  bool pending() const override { return !is_over(); }

 protected:
  bool look() override {
    auto& offered = hand_over_.take();
    if (!offered.is_closing) return false;
    offered.is_closing = false;
    Explored::writes(&is_over_);
    is_over_ = true;
    is_done = true;
    return true;
  }
  bool must_tell_of_close() const override { return turns.is_ending() && !is_over(); }

 private:
  bool is_over() const {
    Explored::reads(&is_over_);
    return is_over_;
  }
  struct Offered {
    std::vector<int> operations;
    bool is_closing = false;
  };
  HandOverOf<Offered, Polled> hand_over_;
  Ending ending_;
  bool is_over_ = false;
};

TEST(ExploredLife, CloseEndsADriverAndTheBackground) {
  expect_none(explore([](Model& model) {
    const auto engine = std::make_shared<Closed>();
    engine->turns.begin();
    model.thread("background", [engine] { engine->turns.serve(*engine); });
    model.thread("driver", [engine] { engine->wait_for_the_work(); });
    model.thread("closer", [engine] { require(engine->close(kNever), "a thread is stuck"); });
    model.finally([engine] { require(engine->turns.life() == Life::ended, "not ended"); });
  }));
}

TEST(ExploredLife, CloseMeetsABlockingCall) {
  expect_none(explore([](Model& model) {
    const auto engine = std::make_shared<Closed>();
    engine->turns.begin();
    model.thread("background", [engine] { engine->turns.serve(*engine); });
    model.thread("blocking call", [engine] {
      if (!engine->turns.try_take()) engine->turns.claim();
      engine->turns.give();
    });
    model.thread("closer", [engine] { require(engine->close(kNever), "a thread is stuck"); });
    model.finally([engine] { require(engine->turns.life() == Life::ended, "not ended"); });
  }));
}

// Two calls race, and either may come first.
TEST(ExploredLife, TheBackgroundBeginsOrEnds) {
  expect_none(explore([](Model& model) {
    const auto engine = std::make_shared<Closed>();
    model.thread("background", [engine] { engine->turns.serve(*engine); });
    model.thread("starter", [engine] { engine->turns.begin(); });
    model.thread("closer", [engine] { require(engine->close(kNever), "a thread is stuck"); });
    model.finally([engine] { require(engine->turns.life() == Life::ended, "not ended"); });
  }));
}

TEST(ExploredLife, AWordIsRaisedHoweverLateItComes) {
  expect_none(explore([](Model& model) {
    const auto engine = std::make_shared<Closed>();
    engine->turns.begin();
    model.thread("background", [engine] { engine->turns.serve(*engine); });
    model.thread("watcher", [engine] { engine->raise_when_over(); });
    model.thread("closer", [engine] { require(engine->close(kNever), "a thread is stuck"); });
    model.finally([engine] { require(*engine->raised == 1, "the word was not raised"); });
  }));
}

// A driver runs an update that ends only after close() has given up.
class Stuck : public Closed {
 public:
  void begin() override { is_driven_ = true; }
  void publish() override { is_driven_ = false; }
  void go_on() {
    may_go_on_ = true;
    may_go_on_.notify_all();
  }

 protected:
  bool look() override {
    if (is_driven_) may_go_on_.wait(false);
    return Closed::look();
  }

 private:
  Polled::Atomic<bool> may_go_on_{false};
  bool is_driven_ = false;
};

TEST(ExploredLife, AStuckDriverStrandsTheTurns) {
  expect_none(explore([](Model& model) {
    const auto engine = std::make_shared<Stuck>();
    engine->turns.begin();
    model.thread("background", [engine] { engine->turns.serve(*engine); });
    model.thread("driver", [engine] { engine->wait_for_the_work(); });
    model.thread("closer", [engine] {
      const bool is_good = engine->close(Explored::now() + std::chrono::seconds(1));
      require((engine->turns.life() == Life::stranded) == !is_good, "not as life() says");
      engine->go_on();
    });
  }));
}

}  // namespace
}  // namespace tutti::explore
