// The effect of each exchange policy on the numbers, and its refusals.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>

#include "tests/adapters/exchange_trainer.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace tutti::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Returns whether all ranks have the same bits in elements [begin, end) of their values.
bool all_hold_the_same(Communicator& comm, const std::vector<float>& values, size_t begin,
                       size_t end) {
  const auto all =
      comm.allgather_bytes("values", std::as_bytes(std::span(values).subspan(begin, end - begin)));
  return std::all_of(all.begin(), all.end(), [&](const auto& bytes) { return bytes == all[0]; });
}

// A simulation in one process, with a separate model for each rank. The inner steps use the
// trainer's rates.
struct Simulated {
  std::vector<std::vector<float>> ranks;
  std::vector<float> shared, velocity;

  explicit Simulated(int size)
      : ranks(static_cast<size_t>(size), std::vector<float>(26, 1.0F)),
        shared(26, 1.0F),
        velocity(26, 0.0F) {}
  void inner_step() {
    for (size_t rank = 0; rank < ranks.size(); ++rank)
      for (size_t i = 0; i < shared.size(); ++i)
        ranks[rank][i] -=
            0.5F * (ranks[rank][i] - ExchangeTrainer::target(static_cast<int>(rank), i));
  }
  std::vector<float> mean_change(size_t begin, size_t end) const {
    std::vector<float> change(shared.size(), 0.0F);
    for (size_t i = begin; i < end; ++i) {
      for (const auto& values : ranks) change[i] += shared[i] - values[i];
      change[i] /= static_cast<float>(ranks.size());
    }
    return change;
  }
  void outer_step(const std::vector<float>& change, size_t begin, size_t end, float kept) {
    for (size_t i = begin; i < end; ++i) {
      velocity[i] = 0.9F * velocity[i] + change[i];
      shared[i] -= 0.7F * (change[i] + 0.9F * velocity[i]);
      for (auto& values : ranks) values[i] = shared[i] + kept * (values[i] - shared[i]);
    }
  }
};

// Two fragments, each sent two steps before its result is used, are compared with the simulation.
TEST(Exchange, FragmentsTravelEarlyAndAreMixed) {
  for (const int size : {1, 2, 3})
    run_threads(size, [](Communicator& comm) {
      constexpr size_t kCut = 15;  // the first three parameters are the first fragment
      Simulated expected(comm.size());
      std::vector<float> first, second;
      for (int step = 1; step <= 18; ++step) {
        expected.inner_step();
        if (step % 6 == 1) first = expected.mean_change(0, kCut);
        if (step % 6 == 4) second = expected.mean_change(kCut, 26);
        if (step % 6 == 3) expected.outer_step(first, 0, kCut, 0.25F);
        if (step % 6 == 0) expected.outer_step(second, kCut, 26, 0.25F);
      }
      const auto got = run_exchange(comm, {.policy = streaming_diloco(6, 2, 2, 0.25), .steps = 18});
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_NEAR(got[i], expected.ranks[static_cast<size_t>(comm.rank())][i], 1e-4)
            << "element " << i << ", rank " << comm.rank() << " of " << comm.size();
    });
}

TEST(Exchange, ReplicasAreEqualToTheBitAfterEachRoundAndNotBefore) {
  run_threads(3, [](Communicator& comm) {
    for (const auto& policy : {local_sgd(3), diloco(3), slow_momentum_sgd(3)}) {
      ExchangeTrainer trainer(comm.rank(), 0.5F);
      auto optimizer = distributed(comm, trainer, {.exchange = policy});
      for (int step = 1; step <= 9; ++step) {
        trainer.set_gradients();
        optimizer.step();
        EXPECT_EQ(all_hold_the_same(comm, trainer.values(), 0, 26), step % 3 == 0) << step;
      }
    }
  });
}

TEST(Exchange, PostLocalIsSynchronousFirst) {
  run_threads(
      3,
      [](Communicator& comm) {
        ExchangeTrainer trainer(comm.rank());
        auto optimizer = distributed(comm, trainer, {.exchange = post_local_sgd(4, 3)});
        for (int step = 1; step <= 10; ++step) {
          trainer.set_gradients();
          optimizer.step();
          EXPECT_EQ(all_hold_the_same(comm, trainer.values(), 0, 26),
                    step <= 4 || step == 7 || step == 10)
              << step;
          if (step == 4) {
            EXPECT_EQ(trainer.values(), run_exchange(comm, {.steps = 4}));
          }
        }
      },
      [](Options& options) { options.determinism = Determinism::rank_order; });
}

TEST(Exchange, MomentaAreOwnOrAveragedOrZeroed) {
  run_threads(2, [](Communicator& comm) {
    for (const auto momenta : {Momenta::own, Momenta::averaged, Momenta::zeroed}) {
      ExchangeTrainer trainer(comm.rank(), 0.5F);
      auto optimizer = distributed(comm, trainer, {.exchange = local_sgd(2, momenta)});
      for (int step = 0; step < 2; ++step) {
        trainer.set_gradients();
        optimizer.step();
      }
      // From w = 1 with target t at rate 1/2: v = 1 - t, w = (1 + t) / 2, then v = 1 - t.
      const auto velocity = [](int rank) { return 1 - ExchangeTrainer::target(rank, 0); };
      const float own = velocity(comm.rank());
      const float expected = momenta == Momenta::own        ? own
                             : momenta == Momenta::averaged ? (velocity(0) + velocity(1)) / 2
                                                            : 0;
      EXPECT_EQ(trainer.state()[0].tensor.as<float>()[0], expected);
    }
  });
}

// The fixed point of x <- x - eta (x - t_i), x <- x + a (mean - x): the mean is the mean of the
// targets, and a rank's own deviation is multiplied by (1 - a) eta / (1 - (1 - a) (1 - eta)).
TEST(Exchange, ElasticAveragingComesToRestWhereItMust) {
  for (const int size : {1, 2, 3, 4, 5})
    run_threads(size, [](Communicator& comm) {
      constexpr double kPull = 0.25, kRate = 0.5;
      const auto values = run_exchange(comm, {.policy = elastic_averaging(kPull), .steps = 80});
      for (size_t i = 0; i < values.size(); ++i) {
        double mean = 0;
        for (int rank = 0; rank < comm.size(); ++rank)
          mean += static_cast<double>(ExchangeTrainer::target(rank, i)) / comm.size();
        const double left = (1 - kPull) * kRate / (1 - (1 - kPull) * (1 - kRate));
        const double expected =
            mean + left * (static_cast<double>(ExchangeTrainer::target(comm.rank(), i)) - mean);
        EXPECT_NEAR(values[i], expected, 1e-5) << "element " << i << " of rank " << comm.rank();
      }
    });
}

TEST(Exchange, ConsolidatingGivesAllTheMean) {
  run_threads(2, [](Communicator& comm) {
    for (const auto& policy : {local_sgd(4), elastic_averaging(), streaming_diloco(8, 2, 3)}) {
      ExchangeTrainer trainer(comm.rank());
      auto optimizer = distributed(comm, trainer, {.exchange = policy});
      for (int step = 0; step < 2; ++step) {
        trainer.set_gradients();
        optimizer.step();
      }
      optimizer.consolidate();
      EXPECT_TRUE(all_hold_the_same(comm, trainer.values(), 0, 26));
      for (int step = 0; step < 10; ++step) {
        trainer.set_gradients();
        optimizer.step();
      }
      optimizer.consolidate();
      EXPECT_TRUE(all_hold_the_same(comm, trainer.values(), 0, 26));
    }
  });
}

// After consolidate(), a rank whose steps change nothing keeps the common values.
TEST(Exchange, TheNextRoundBeginsWhereConsolidatingEnded) {
  run_threads(2, [](Communicator& comm) {
    ExchangeTrainer trainer(comm.rank());
    auto optimizer = distributed(comm, trainer, {.exchange = diloco(3)});
    trainer.set_gradients();
    optimizer.step();
    optimizer.consolidate();
    const auto mean = trainer.values();
    trainer.set_learning_rate(0);
    for (int step = 0; step < 6; ++step) optimizer.step();
    EXPECT_EQ(trainer.values(), mean);
  });
}

TEST(Exchange, TheFirstRoundBeginsWhereSynchronousStepsEnded) {
  run_threads(2, [](Communicator& comm) {
    ExchangeTrainer trainer(comm.rank());
    auto policy = diloco(3);
    policy.synchronous_steps = 2;
    auto optimizer = distributed(comm, trainer, {.exchange = policy});
    for (int step = 0; step < 2; ++step) {
      trainer.set_gradients();
      optimizer.step();
    }
    const auto equal = trainer.values();
    trainer.set_learning_rate(0);
    for (int step = 0; step < 6; ++step) optimizer.step();
    EXPECT_EQ(trainer.values(), equal);
  });
}

// A run that is stopped after a round and continues from its saved tensors ends with the same
// values as the whole run.
TEST(Exchange, GoesOnFromItsState) {
  run_threads(2, [](Communicator& comm) {
    const auto policy = diloco(3);
    const auto whole = run_exchange(comm, {.policy = policy, .steps = 12});
    ExchangeTrainer first(comm.rank()), second(comm.rank());
    std::vector<std::vector<std::byte>> saved;
    {
      auto optimizer = distributed(comm, first, {.exchange = policy});
      for (int step = 0; step < 6; ++step) {
        first.set_gradients();
        optimizer.step();
      }
      for (const auto& state : optimizer.exchange_state())
        saved.emplace_back(state.tensor.data(), state.tensor.data() + state.tensor.bytes());
    }
    for (size_t i = 0; i < first.parameters().size(); ++i)
      std::memcpy(second.parameters()[i].value.data(), first.parameters()[i].value.data(),
                  static_cast<size_t>(first.parameters()[i].value.bytes()));
    auto optimizer = distributed(comm, second, {.exchange = policy});
    const auto states = optimizer.exchange_state();
    ASSERT_EQ(states.size(), saved.size());
    EXPECT_EQ(states.size(), 2 * second.parameters().size() + 1);
    for (size_t i = 0; i < states.size(); ++i)
      std::memcpy(states[i].tensor.data(), saved[i].data(), saved[i].size());
    for (int step = 0; step < 6; ++step) {
      second.set_gradients();
      optimizer.step();
    }
    EXPECT_EQ(second.values(), whole);
  });
}

// Expects the bytes that all ranks together send in 24 steps, as the Communicator counts them. A
// ring sends the reduced data 2 (n - 1) times: here `allreduces` times 26 elements of 4 bytes.
void expect_bytes(Communicator& comm, const ExchangePolicy& policy, int allreduces) {
  ExchangeTrainer trainer(comm.rank(), 0.5F);
  auto optimizer = distributed(comm, trainer, {.exchange = policy});
  comm.barrier_blocking();
  const auto before = comm.statistics().data_bytes;
  for (int step = 0; step < 24; ++step) {
    trainer.set_gradients();
    optimizer.step();
  }
  std::vector<double> sent(1, static_cast<double>(comm.statistics().data_bytes - before));
  comm.allreduce_blocking("sent", sent, ReduceOp::sum);
  EXPECT_EQ(sent[0], allreduces * 26 * 4 * 2 * (comm.size() - 1))
      << testing::PrintToString(policy_settings(policy));
}

TEST(Exchange, SendsAsManyBytesAsTheFormulaSays) {
  run_threads(
      2,
      [](Communicator& comm) {
        expect_bytes(comm, synchronous(), 24);
        expect_bytes(comm, post_local_sgd(12, 6), 14);
        expect_bytes(comm, elastic_averaging(), 24);
      },
      [](Options& options) { options.backend = "tcp"; });
}

// A small tensor alone would be sent directly to all others (n - 1 times). The tensors of a round
// are reduced together instead, from the first round on.
TEST(Exchange, RoundsSendNoTensorByItself) {
  struct Case {
    ExchangePolicy policy;
    int allreduces;
  };
  for (const int size : {2, 4})
    for (const auto& [policy, allreduces] : std::vector<Case>{{local_sgd(4), 6},
                                                              {local_sgd(4, Momenta::averaged), 12},
                                                              {diloco(8), 3},
                                                              {streaming_diloco(8, 2, 1), 3},
                                                              {elastic_averaging(), 24}})
      run_threads(
          size, [&](Communicator& comm) { expect_bytes(comm, policy, allreduces); },
          [](Options& options) {
            options.backend = "tcp";
            options.algorithms = "allreduce:0-32=one_shot,32-inf=ring";
          });
}

TEST(ExchangeBadInput, PoliciesThatExcludeEachOther) {
  struct Case {
    ExchangePolicy policy;
    const char *first, *second;  // texts that the error must contain
  };
  const auto with = [](ExchangePolicy policy, const auto& change) {
    change(policy);
    return policy;
  };
  const std::vector<Case> cases = {
      {{.every = 4}, "what=gradients", "every=4"},
      {{.outer = {.kind = OuterStep::Kind::sgd}}, "what=gradients", "outer=sgd"},
      {{.momenta = Momenta::averaged}, "what=gradients", "momenta=averaged"},
      {{.synchronous_steps = 5}, "what=gradients", "synchronous_steps=5"},
      {{.fragments = 2}, "what=gradients", "fragments=2"},
      {with(local_sgd(4), [](auto& p) { p.outer.kind = OuterStep::Kind::sgd; }), "outer=sgd",
       "what=parameters"},
      {with(diloco(4), [](auto& p) { p.outer.kind = OuterStep::Kind::elastic; }), "outer=elastic",
       "what=changes"},
      {with(local_sgd(4), [](auto& p) { p.combination = Combination::adasum; }),
       "combination=adasum", "what=parameters"},
      {with(adasum_of_changes(4), [](auto& p) { p.fragments = 2; }), "combination=adasum",
       "fragments=2"},
      {streaming_diloco(7, 2), "every=7", "fragments=2"},
      {streaming_diloco(8, 2, 4), "early=4", "every=8"},
      {with(diloco(8), [](auto& p) { p.kept = 0.5; }), "kept=0.5", "early=0"},
      {with(streaming_diloco(8, 2), [](auto& p) { p.momenta = Momenta::zeroed; }), "fragments=2",
       "momenta=zeroed"},
      {with(streaming_diloco(8, 1, 2), [](auto& p) { p.momenta = Momenta::averaged; }), "early=2",
       "momenta=averaged"},
      {local_sgd(0), "every is 0", "at least 1"},
      {elastic_averaging(1.5), "outer.pull is 1.5", "at most 1"},
      {diloco(4, 0.7, 1.0), "outer.momentum is 1", "less than 1"},
      {streaming_diloco(10, 5), "fragments=5", "4 parameters; use at most that many fragments"},
  };
  run_threads(1, [&](Communicator& comm) {
    for (const auto& [policy, first, second] : cases) {
      ExchangeTrainer trainer(0);
      const auto error = expect_refused(
          "", [&, &policy = policy] { distributed(comm, trainer, {.exchange = policy}); });
      EXPECT_THAT(error.what(), testing::StartsWith("exchange policy: "));
      EXPECT_THAT(error.what(), AllOf(HasSubstr(first), HasSubstr(second)));
    }
    ExchangeTrainer trainer(0);
    const auto refused = [&](const DistributedOptions& options, const char* what) {
      EXPECT_THAT(error_of([&] { distributed(comm, trainer, options); }).what(),
                  testing::HasSubstr(what));
    };
    refused({.exchange = local_sgd(4), .op = ReduceOp::sum}, "op=sum");
    refused({.exchange = local_sgd(4), .wire = DataType::bf16}, "wire");
    refused({.exchange = adasum_of_changes(4), .wire = DataType::bf16}, "wire");
    refused({.exchange = diloco(4), .predivide = 2}, "predivide");
    auto optimizer = distributed(comm, trainer, {.exchange = local_sgd(4)});
    EXPECT_THAT(error_of([&] { optimizer.step_without_exchange(); }).what(),
                testing::HasSubstr("excludes an exchange policy of parameters or changes"));
  });
}

// An optimizer without momenta and without a learning rate.
struct BareTrainer {
  std::vector<ExchangeTrainer::Param> list;
  explicit BareTrainer(DataType dtype) {
    list.push_back({"w", Tensor(Shape{4}, dtype), Tensor(Shape{4}, dtype)});
  }
  std::vector<ExchangeTrainer::Param>& parameters() { return list; }
  void step() {}
};

TEST(ExchangeBadInput, OptimizersThatCannotDoIt) {
  run_threads(2, [](Communicator& comm) {
    const auto refused = [&](DataType dtype, const DistributedOptions& options, const char* what) {
      BareTrainer trainer(dtype);
      expect_error(ErrorCode::invalid_argument, what, [&] { distributed(comm, trainer, options); });
    };
    refused(DataType::f32, {.exchange = local_sgd(2, Momenta::averaged)},
            "momenta are to be averaged or zeroed, but the optimizer has no state()");
    refused(DataType::f32, {.exchange = slow_momentum_sgd(2)},
            "outer=slow_momentum needs an optimizer with learning_rate()");
    refused(DataType::f16, {.exchange = local_sgd(2)},
            "is f16 on the host, expected f32 or f64 in host memory; exchange gradients instead");
    refused(DataType::f16, {.noise = {.batch = 4}}, "noise policy: gradient of \"w\" is f16");
  });
}

// Every rank gets the same error, and no rank's parameters were changed.
TEST(ExchangeBadInput, SettingsThatDifferBetweenRanks) {
  run_threads(3, [](Communicator& comm) {
    ExchangeTrainer trainer(comm.rank());
    trainer.parameters()[0].value.as<float>()[0] = static_cast<float>(comm.rank());
    const auto before = trainer.values();
    const auto policy = comm.rank() == 2 ? local_sgd(8) : local_sgd(4);
    EXPECT_EQ(
        expect_error(ErrorCode::mismatch, "on rank 2 and on rank 0: expected every=4, got every=8",
                     [&] { distributed(comm, trainer, {.exchange = policy}); })
            .rank(),
        2);
    EXPECT_EQ(trainer.values(), before);
  });
}

TEST(ExchangeBadInput, ReplicasThatStartUnequal) {
  for (const auto& policy : {synchronous(), local_sgd(4), adasum_of_gradients()})
    run_threads(3, [&](Communicator& comm) {
      ExchangeTrainer trainer(comm.rank());
      if (comm.rank() == 1) trainer.parameters()[2].value.as<float>()[1] = 7;
      const auto before = trainer.values();
      const auto error = expect_error(ErrorCode::mismatch, "", [&] {
        distributed(comm, trainer, {.exchange = policy, .broadcast_first = false});
      });
      EXPECT_EQ(error.rank(), 1);
      EXPECT_EQ(error.tensor(), "third");
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("\"third\" begins with different values: expected rank 0's"),
                        HasSubstr("load the same checkpoint on every rank"), HasSubstr("rank 1")));
      EXPECT_EQ(trainer.values(), before);
    });
}

TEST(ExchangeBadInput, LearningRatesThatDifferBetweenRanks) {
  run_threads(2, [](Communicator& comm) {
    ExchangeTrainer trainer(comm.rank());
    auto optimizer = distributed(comm, trainer, {.exchange = slow_momentum_sgd(1)});
    trainer.set_learning_rate(comm.rank() == 0 ? 0.5 : 0.25);
    trainer.set_gradients();
    const auto error = expect_error(ErrorCode::mismatch, "", [&] { optimizer.step(); });
    EXPECT_THAT(error.what(), AllOf(HasSubstr("SlowMo divides by the learning rate"),
                                    HasSubstr("0.25"), HasSubstr("0.5"), HasSubstr("step 1")));
    for (const auto& state : optimizer.exchange_state())
      if (state.name == "exchange.shared.first") {
        EXPECT_EQ(state.tensor.as<float>()[0], 1.0F);
      }
  });
}

}  // namespace
}  // namespace tutti::test
