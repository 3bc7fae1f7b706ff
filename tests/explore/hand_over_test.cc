// The program's threads submit operations while the background thread sleeps in the middle of a
// plan.

#include "tutti/core/threads/hand_over.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/explore/toy_engine.h"

namespace tutti::explore {
namespace {

constexpr int kBytes = 3;  // bytes of the plan
constexpr uint32_t kPlan = 1;

// The plan is done once all its bytes have been submitted.
class Planned : public ToyEngine {
 public:
  struct Offered {
    std::vector<int> operations;
  };
  HandOverOf<Offered, Polled> hand_over;
  Polled::Atomic<bool> has_some{false}, has_all{false};

  void put_down_a_byte() {
    const auto lock = hand_over.lock();
    hand_over.offered(lock).operations.push_back(1);
    hand_over.count(lock, 1, kPlan, true);
    if (hand_over.must_ring(lock)) turns.wake();
  }
  bool pending() const override { return bytes() > 0 && bytes() < kBytes; }
  bool be_quiet() override { return hand_over.be_quiet(kBytes - bytes(), kPlan); }

 protected:
  bool look() override {
    auto& operations = hand_over.take().operations;
    if (operations.empty()) return false;
    Explored::writes(&bytes_);
    bytes_ += static_cast<int>(operations.size());
    operations.clear();
    has_some = true;
    if (bytes_ < kBytes) return true;
    has_all = true;
    has_all.notify_all();
    return true;
  }

 private:
  int bytes() const {
    Explored::reads(&bytes_);
    return bytes_;
  }
  int bytes_ = 0;
};

TEST(ExploredHandOver, QuietBytesAreNotSleptOver) {
  expect_none(explore([](Model& model) {
    const auto engine = std::make_shared<Planned>();
    engine->turns.begin();
    model.thread("background", [engine] { engine->turns.serve(*engine); });
    model.thread("submitter", [engine] {
      for (int i = 0; i < kBytes; ++i) engine->put_down_a_byte();
      engine->has_all.wait(false);
      engine->turns.end();
      require(engine->turns.ended_by(kNever), "the background thread has not ended");
    });
    // This driver takes a part of the plan and leaves.
    model.thread("driver", [engine] {
      engine->turns.drive(
          *engine, [&] { return engine->has_some.load(); }, kNever);
    });
  }));
}

}  // namespace
}  // namespace tutti::explore
