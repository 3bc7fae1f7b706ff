// Trainings with exchange policies are saved between any two steps. They continue bit by bit on the
// same number of ranks. On another number of ranks, each starts with the mean of the ranks' own
// values.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "tests/adapters/exchange_trainer.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch_folder.h"
#include "tutti/adapters/checkpoint/checkpoint_folder.h"

namespace tutti::test {
namespace {

struct Named {
  const char* name;
  ExchangePolicy policy;
};
std::vector<Named> policies() {
  return {{"synchronous", synchronous()},
          {"local_sgd", local_sgd(4)},
          {"averaged", local_sgd(4, Momenta::averaged)},
          {"post_local", post_local_sgd(3, 4)},
          {"slow_momentum", slow_momentum_sgd(4)},
          {"diloco", diloco(4)},
          {"streaming", streaming_diloco(8, 2, 3)},
          {"elastic", elastic_averaging(0.25, 3)},
          {"adasum_of_changes", adasum_of_changes(4)}};
}

void in_rank_order(Options& options) { options.determinism = Determinism::rank_order; }

// Takes `steps` of a training whose rates and targets follow from the step.
template <class O>
void take_steps(ExchangeTrainer& trainer, O& optimizer, int from, int to) {
  for (int step = from; step < to; ++step) {
    trainer.set_learning_rate(step < 6 ? 0.125 : 0.0625);
    trainer.set_gradients();
    optimizer.step();
  }
}

constexpr int kWhole = 15;
constexpr float kMomentum = 0.5F;

// The final values of each rank.
using Ends = std::map<int, std::vector<float>>;

TEST(ExchangeCheckpoint, GoesOnToTheBitFromAnyStep) {
  for (const auto& [name, policy] : policies())
    for (const int size : {2, 3})
      for (int stop = 1; stop < 11; stop += size == 2 && !kIsBrief ? 1 : 4) {
        SCOPED_TRACE(std::string(name) + " on " + std::to_string(size) + ", stopped after " +
                     std::to_string(stop));
        const ScratchFolder scratch;
        std::mutex mutex;
        Ends whole, resumed;
        run_threads(
            size,
            [&, policy = policy](Communicator& comm) {
              ExchangeTrainer trainer(comm.rank(), kMomentum);
              auto optimizer = distributed(comm, trainer, {.exchange = policy});
              take_steps(trainer, optimizer, 0, stop);
              CheckpointFolder(comm, scratch.path()).save(stop, optimizer.placed_state());
              take_steps(trainer, optimizer, stop, kWhole);
              const std::lock_guard lock(mutex);
              whole[comm.rank()] = trainer.values();
            },
            in_rank_order);
        run_threads(
            size,
            [&, policy = policy](Communicator& comm) {
              ExchangeTrainer trainer(comm.rank(), kMomentum);
              auto optimizer = distributed(comm, trainer, {.exchange = policy});
              ASSERT_TRUE(CheckpointFolder(comm, scratch.path()).load(optimizer.placed_state()));
              take_steps(trainer, optimizer, stop, kWhole);
              const std::lock_guard lock(mutex);
              resumed[comm.rank()] = trainer.values();
            },
            in_rank_order);
        EXPECT_EQ(resumed, whole);
      }
}

// Saves while a fragment is in flight and rank 1 is late. The saved fragment must be the mean, not
// the values that this rank has sent.
TEST(ExchangeCheckpoint, WhatIsOnItsWayHasArrived) {
  run_threads(2, [](Communicator& comm) {
    ExchangeTrainer trainer(comm.rank());
    auto optimizer = distributed(comm, trainer, {.exchange = streaming_diloco(8, 2, 2)});
    take_steps(trainer, optimizer, 0, 1);
    if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    take_steps(trainer, optimizer, 1, 2);  // starts to send the first fragment
    for (const auto& [name, tensor, placement] : optimizer.placed_state()) {
      if (name != "exchange.sent.first") continue;
      const float* sent = tensor.as<float>();
      std::vector<float> saved(sent, sent + tensor.count()), mean = saved;
      comm.allreduce_blocking("saved", mean);
      EXPECT_EQ(saved, mean) << "rank " << comm.rank();
      return;
    }
    FAIL() << "no fragment is saved";
  });
}

TEST(ExchangeCheckpoint, OnOtherRanksEachBeginsWithTheMean) {
  const auto policy = slow_momentum_sgd(4);
  const ScratchFolder scratch;
  std::mutex mutex;
  Ends saved;
  std::vector<std::byte> shared;
  run_threads(2, [&](Communicator& comm) {
    ExchangeTrainer trainer(comm.rank(), kMomentum);
    auto optimizer = distributed(comm, trainer, {.exchange = policy});
    take_steps(trainer, optimizer, 0, 6);
    CheckpointFolder(comm, scratch.path()).save(6, optimizer.placed_state());
    const std::lock_guard lock(mutex);
    saved[comm.rank()] = trainer.values();
    const auto states = optimizer.exchange_state();
    const auto& first = states[0].tensor;
    shared.assign(first.data(), first.data() + first.bytes());
  });
  ASSERT_NE(saved[0], saved[1]);
  for (const int size : {1, 3})
    run_threads(size, [&](Communicator& comm) {
      ExchangeTrainer trainer(comm.rank(), kMomentum);
      auto optimizer = distributed(comm, trainer, {.exchange = policy});
      EXPECT_EQ(CheckpointFolder(comm, scratch.path()).load(optimizer.placed_state())->members, 2);
      const auto values = trainer.values();
      for (size_t i = 0; i < values.size(); ++i)
        EXPECT_FLOAT_EQ(values[i], (saved[0][i] + saved[1][i]) / 2);
      const auto states = optimizer.exchange_state();
      const auto& first = states[0].tensor;
      EXPECT_EQ(std::memcmp(first.data(), shared.data(), shared.size()), 0);
      take_steps(trainer, optimizer, 6, 8);  // the round ends at its original step
      std::vector<float> mean = trainer.values();
      comm.allreduce("mean", mean).wait();
      for (size_t i = 0; i < mean.size(); ++i) EXPECT_FLOAT_EQ(trainer.values()[i], mean[i]);
    });
}

// A checkpoint of a policy with equal replicas has one copy of each tensor. A policy whose replicas
// may differ can load it too.
TEST(ExchangeCheckpoint, OfAnotherPolicy) {
  const ScratchFolder scratch;
  run_threads(2, [&](Communicator& comm) {
    ExchangeTrainer trainer(comm.rank(), kMomentum);
    auto optimizer = distributed(comm, trainer);
    take_steps(trainer, optimizer, 0, 3);
    CheckpointFolder(comm, scratch.path()).save(3, optimizer.placed_state());
    ExchangeTrainer other(comm.rank(), kMomentum);
    auto local = distributed(comm, other, {.exchange = local_sgd(4)});
    auto state = local.placed_state();
    std::erase_if(state, [](const auto& tensor) { return tensor.name.starts_with("exchange."); });
    CheckpointFolder(comm, scratch.path()).load(state);
    EXPECT_EQ(other.values(), trainer.values());
  });
}

}  // namespace
}  // namespace tutti::test
