// DiLoCo is compared with its recurrence, written down in f64. Also covers parameters with which
// the recurrence diverges.

#include <gtest/gtest.h>

#include <cmath>

#include "tests/adapters/exchange_trainer.h"
#include "tests/support/ranks.h"

namespace tutti::test {
namespace {

// One element on all ranks, with the loss |w - target|^2 / 2, inner SGD with momentum, and outer
// SGD with Nesterov momentum.
class PlainDiloco {
 public:
  PlainDiloco(const ExchangePolicy& policy, int size, size_t element, int fragment)
      : policy_(policy), fragment_(fragment), ranks_(static_cast<size_t>(size)) {
    for (int rank = 0; rank < size; ++rank)
      ranks_[static_cast<size_t>(rank)].target = ExchangeTrainer::target(rank, element);
  }
  void step(double rate, double momentum) {
    ++steps_;
    for (auto& [value, velocity, target] : ranks_) {
      velocity = momentum * velocity + (value - target);
      value -= rate * velocity;
    }
    if (is_due(steps_ + policy_.early)) {
      change_ = 0;
      for (const auto& rank : ranks_)
        change_ += (shared_ - rank.value) / static_cast<double>(ranks_.size());
      is_under_way_ = true;
    }
    if (!is_due(steps_) || !is_under_way_) return;
    is_under_way_ = false;
    const auto& outer = policy_.outer;
    velocity_ = outer.momentum * velocity_ + change_;
    shared_ -= outer.rate * (change_ + outer.momentum * velocity_);
    for (auto& rank : ranks_) rank.value = shared_ + policy_.kept * (rank.value - shared_);
  }
  double value(int rank) const { return ranks_[static_cast<size_t>(rank)].value; }

 private:
  // Fragment f ends (f + 1) * every / fragments steps after the start of a round.
  bool is_due(int64_t at) const {
    const int apart = policy_.every / policy_.fragments;
    return at % policy_.every == (fragment_ + 1) * apart % policy_.every;
  }
  struct Rank {
    double value = 1, velocity = 0, target = 0;
  };
  const ExchangePolicy policy_;
  const int fragment_;
  std::vector<Rank> ranks_;
  int64_t steps_ = 0;
  double shared_ = 1, velocity_ = 0, change_ = 0;
  bool is_under_way_ = false;
};

// The trainer's parameters have 2, 5, 8 and 11 elements. Two fragments are the first three
// parameters and the last one, the split closest to halves. Four fragments are one parameter each.
int fragment_of(size_t element, int fragments) {
  if (fragments == 4) return element < 2 ? 0 : element < 7 ? 1 : element < 15 ? 2 : 3;
  return fragments == 2 && element >= 15 ? 1 : 0;
}

void equals_its_recurrence(Communicator& comm, const ExchangePolicy& policy) {
  constexpr int kSteps = 50;
  constexpr double kRate = 0.0625, kMomentum = 0.75;
  ExchangeTrainer trainer(comm.rank(), static_cast<float>(kMomentum));
  trainer.set_learning_rate(kRate);
  auto optimizer = distributed(comm, trainer, {.exchange = policy});
  std::vector<PlainDiloco> plain;
  for (size_t element = 0; element < trainer.values().size(); ++element)
    plain.emplace_back(policy, comm.size(), element, fragment_of(element, policy.fragments));
  for (int step = 0; step < kSteps; ++step) {
    trainer.set_gradients();
    optimizer.step();
    const auto values = trainer.values();
    for (size_t i = 0; i < values.size(); ++i) {
      plain[i].step(kRate, kMomentum);
      ASSERT_NEAR(values[i], plain[i].value(comm.rank()), 1e-4)
          << "element " << i << " after step " << step + 1;
    }
  }
}

TEST(Diloco, IsItsRecurrence) {
  for (const auto& policy : {diloco(8), diloco(5, 0.4, 0.5), streaming_diloco(8, 2),
                             streaming_diloco(8, 2, 2, 0.5), streaming_diloco(8, 4)})
    for (const int size : {1, 3})
      run_threads(size, [&](Communicator& comm) { equals_its_recurrence(comm, policy); });
}

// Returns the largest distance from the target in the last ten rounds; it starts at 1.
double grown(int every, double inner_momentum, int rounds) {
  PlainDiloco plain(diloco(every), 1, 0, 0);  // starts at 1, with target 0
  double largest = 0;
  for (int i = 0; i < rounds * every; ++i) {
    plain.step(0.05, inner_momentum);
    if (i >= (rounds - 10) * every) largest = std::max(largest, std::abs(plain.value(0)));
  }
  return largest;
}

// As docs/training-methods.md says, two momenta of about the same length amplify each other.
TEST(Diloco, ShortRoundsOverInnerMomentumDiverge) {
  EXPECT_GT(grown(4, 0.9, 100), 100);
  EXPECT_LT(grown(16, 0.9, 100), 1e-6);
  EXPECT_LT(grown(4, 0, 100), 1e-2);
}

}  // namespace
}  // namespace tutti::test
