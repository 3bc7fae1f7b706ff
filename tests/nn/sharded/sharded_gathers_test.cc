// When a rank gathers the values that other ranks hold (ZeRO 3): when layers need them, and a given
// number ahead. Also covers the loss of a rank.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstring>

#include "tests/nn/sharded/sharded_parameters.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tutti/adapters/distributed.h"
#include "tutti/adapters/nn/layers/loss.h"
#include "tutti/adapters/nn/sequential.h"
#include "tutti/adapters/nn/sharded.h"

namespace tutti::nn {
namespace {

// A network whose layers hold their parameters only while they compute learns the same as one that
// holds all of them.
TEST(Sharded, LayersGatherWhatTheyNeed) {
  test::run_threads(
      3,
      [](Communicator& comm) {
        const auto gatherer = std::make_shared<Gatherer>();
        const auto model_of = [&](bool in_parts) {
          auto model = std::make_unique<Sequential>(5);
          const auto layer = [&](std::unique_ptr<Layer> made) {
            return in_parts ? gathered(std::move(made), gatherer) : std::move(made);
          };
          model->add("conv", layer(conv2d(1, 4, 3)))
              .add("relu", layer(relu()))
              .add("flatten", layer(flatten()))
              .add("fc1", layer(linear(4 * 6 * 6, 64)))
              .add("fc2", layer(linear(64, 10)));
          return model;
        };
        const auto plain_model = model_of(false), model = model_of(true);
        const SgdOptions options{.learning_rate = 0.1, .momentum = 0.9};
        Sgd sgd(plain_model->parameters(), options);
        auto plain = distributed(comm, sgd);
        ShardedOptimizer<Sgd> sharded(comm, model->parameters(), options, {.stage = 3});
        sharded.serve(gatherer);
        std::mt19937 random(static_cast<unsigned>(comm.rank()));
        for (int step = 0; step < 4; ++step) {
          Tensor images(Shape{8, 1, 8, 8}, DataType::f32), labels(Shape{8}, DataType::i64);
          for (float& pixel : images.span<float>()) pixel = static_cast<float>(random() % 8) / 8;
          for (int64_t& label : labels.span<int64_t>()) label = static_cast<int64_t>(random() % 10);
          plain_model->zero_grad();
          CrossEntropy expected(plain_model->forward(images), labels);
          plain_model->backward(expected);
          plain.step();
          sharded.zero_grad();
          CrossEntropy loss(model->forward(images), labels);
          model->backward(loss);
          sharded.step();
          EXPECT_EQ(loss.value(), expected.value()) << step;
        }
        // From the second step on, no parameter is whole between steps.
        EXPECT_LT(sharded.memory().values, 4 * model->parameter_count() / 3 + 64);
      },
      in_rank_order);
}

// Parameters are gathered ahead in the order of the step before, so the first step gathers none
// ahead.
TEST(Sharded, GathersAheadOfUse) {
  test::run_threads(2, [](Communicator& comm) {
    for (int ahead = 0; ahead <= 2; ++ahead) {
      auto parameters = made(1);
      ShardedOptimizer<Adam> sharded(comm, parameters, AdamOptions{}, {.stage = 3, .ahead = ahead});
      for (int step = 0; step < 3; ++step) {
        const int64_t before = sharded.memory().values;
        sharded.need(parameters[0].name);
        int64_t expected = 0;
        for (int i = 0; i <= (step == 0 ? 0 : ahead); ++i)
          expected += parameters[static_cast<size_t>(i)].value.bytes();
        EXPECT_EQ(sharded.memory().values - before, expected) << ahead << " ahead, step " << step;
        sharded.done(parameters[0].name);
        for (size_t i = 1; i < parameters.size(); ++i) {
          sharded.need(parameters[i].name);
          sharded.done(parameters[i].name);
        }
        sharded.step();
        EXPECT_EQ(sharded.memory().values, before);
        // The largest sum of a parameter and the `ahead` parameters after it: no more may be held
        // at one time.
        int64_t most = 0;
        for (size_t i = 0; i < parameters.size(); ++i) {
          int64_t held = 0;
          for (size_t k = i; k <= i + static_cast<size_t>(step == 0 ? 0 : ahead); ++k)
            if (k < parameters.size()) held += parameters[k].value.bytes();
          most = std::max(most, held);
        }
        EXPECT_EQ(sharded.peak_memory().values - before, most) << ahead << " ahead, step " << step;
      }
    }
  });
}

// When a step uses another order than the step before, the next parameters are unknown, so none is
// gathered ahead.
TEST(Sharded, AnotherOrderGathersNothingAhead) {
  test::run_threads(2, [](Communicator& comm) {
    auto parameters = made(1);
    ShardedOptimizer<Adam> sharded(comm, parameters, AdamOptions{}, {.stage = 3, .ahead = 2});
    const auto use = [&](const Parameter& parameter) {
      sharded.need(parameter.name);
      sharded.done(parameter.name);
    };
    for (const auto& parameter : parameters) use(parameter);
    sharded.step();
    const int64_t before = sharded.memory().values;
    sharded.need(parameters.back().name);
    EXPECT_EQ(sharded.memory().values - before, parameters.back().value.bytes());
    sharded.done(parameters.back().name);
    for (size_t i = 0; i + 1 < parameters.size(); ++i) use(parameters[i]);
    sharded.step();
    EXPECT_EQ(sharded.memory().values, before);
  });
}

// The last layer runs backward directly after forward, and is gathered once for both.
TEST(Sharded, WhatIsNeededAgainSoonIsKept) {
  test::run_threads(2, [](Communicator& comm) {
    for (int ahead = 0; ahead <= 1; ++ahead) {
      auto parameters = made(1);
      ShardedOptimizer<Adam> sharded(comm, parameters, AdamOptions{}, {.stage = 3, .ahead = ahead});
      const int64_t before = sharded.memory().values, last = parameters.back().value.bytes();
      for (int step = 0; step < 3; ++step) {
        for (const auto& parameter : parameters) {
          sharded.need(parameter.name);
          sharded.done(parameter.name);
        }
        EXPECT_EQ(sharded.memory().values - before, step == 0 ? 0 : last)
            << ahead << " ahead, step " << step;
        for (size_t i = parameters.size(); i-- > 0;) {
          sharded.need(parameters[i].name);
          sharded.done(parameters[i].name);
        }
        sharded.step();
        EXPECT_EQ(sharded.memory().values, before);
      }
    }
  });
}

// Several needs in a row gather no more than `ahead` parameters ahead.
TEST(Sharded, ManyLayersAreGatheredNoFurtherAhead) {
  test::run_threads(2, [](Communicator& comm) {
    std::vector<Parameter> parameters;
    for (int i = 0; i < 12; ++i)
      parameters.push_back({"w" + std::to_string(i), Tensor(Shape{4096}, DataType::f32),
                            Tensor(Shape{4096}, DataType::f32), std::make_shared<GradientReady>()});
    ShardedOptimizer<Adam> sharded(comm, parameters, AdamOptions{}, {.stage = 3, .ahead = 2});
    const int64_t before = sharded.memory().values;
    for (int step = 0; step < 3; ++step) {
      for (const auto& parameter : parameters) {
        sharded.need(parameter.name);
        sharded.done(parameter.name);
      }
      for (size_t i = parameters.size(); i-- > 0;) {
        sharded.need(parameters[i].name);
        sharded.done(parameters[i].name);
      }
      sharded.step();
      EXPECT_LE(sharded.peak_memory().values - before, 3 * 4096 * 4) << "step " << step;
    }
  });
}

// The other ranks learn which rank is gone, and their own shards are unchanged.
TEST(Sharded, ARankIsLostInAGather) {
  test::run_processes(3, [](Communicator& comm) {
    auto parameters = made(1);
    ShardedOptimizer<Adam> sharded(comm, parameters, AdamOptions{}, {.stage = 3});
    const auto before = sharded.state()[0].here;
    const std::vector<float> values(before.as<float>(), before.as<float>() + before.count());
    if (comm.rank() == 1) ::_exit(0);
    try {
      for (const auto& parameter : parameters) sharded.need(parameter.name);
      ADD_FAILURE() << "gathered without rank 1";
    } catch (const Error& error) {
      EXPECT_EQ(error.rank(), 1) << error.what();
    }
    EXPECT_EQ(std::memcmp(before.data(), values.data(), values.size() * sizeof(float)), 0);
  });
}

}  // namespace
}  // namespace tutti::nn
