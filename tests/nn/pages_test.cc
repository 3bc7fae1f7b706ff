// The code blocks of docs/training-methods.md and docs/checkpoints.md, with exactly the same lines.
// Two ranks train with each block and end with equal models that have learned. tests/docs checks
// that page and test agree.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/ranks.h"
#include "tests/support/scratch_folder.h"
#include "tutti/adapters/checkpoint/checkpoint_folder.h"
#include "tutti/adapters/distributed.h"
#include "tutti/adapters/exchange/policy.h"
#include "tutti/adapters/nn/sharded.h"
#include "tutti/nn.h"

namespace tutti::nn {
namespace {

namespace fs = std::filesystem;

using Batches = std::vector<std::pair<Tensor, Tensor>>;

constexpr int64_t kRows = 16;

// One of ten parts of an image is bright; the label is its index. Each rank has its own batches.
Batches batches_of(int rank, int64_t pixels) {
  Batches batches;
  for (int64_t batch = 0; batch < 48; ++batch) {
    auto images = Tensor(Shape{kRows, pixels}, DataType::f32);
    auto labels = Tensor(Shape{kRows}, DataType::i64);
    for (int64_t row = 0; row < kRows; ++row) {
      const int64_t label = (row * 7 + batch * 3 + rank) % 10;
      labels.as<int64_t>()[row] = label;
      std::fill_n(images.as<float>() + row * pixels + label * (pixels / 10), pixels / 10, 1.0f);
    }
    batches.emplace_back(std::move(images), std::move(labels));
  }
  return batches;
}

void expect_that_it_learned(Communicator& comm, Sequential& model, const Batches& loader) {
  CrossEntropy loss(model.forward(loader[0].first), loader[0].second);
  EXPECT_LT(loss.sum() / kRows, 1);  // 2.3 before training
  for (const auto& parameter : model.parameters()) {
    const auto of_rank_0 = parameter.value.clone();
    comm.broadcast("replica", of_rank_0).wait();
    EXPECT_TRUE(std::equal(of_rank_0.as<float>(), of_rank_0.as<float>() + of_rank_0.count(),
                           parameter.value.as<float>()));
  }
}

TEST(Pages, RanksThatExchangeParameters) {
  test::run_threads(2, [](Communicator& of_rank) {
    auto* comm = &of_rank;
    const auto loader = batches_of(comm->rank(), 40);
    Sequential model;
    model.add("fc", linear(40, 10));
    nn::Sgd sgd(model.parameters(), {.learning_rate = 0.05, .momentum = 0.9});
    auto optimizer = tutti::distributed(*comm, sgd, {.exchange = tutti::local_sgd(16)});
    for (const auto& [images, labels] : loader) {
      model.zero_grad();
      nn::CrossEntropy loss(model.forward(images), labels);
      model.backward(loss);
      optimizer.step();
    }
    optimizer.consolidate();  // all ranks get the mean of their parameters
    expect_that_it_learned(*comm, model, loader);
  });
}

TEST(Pages, ShardsOfEverything) {
  const auto folder = fs::temp_directory_path() / ("tutti_pages_" + std::to_string(::getpid()));
  test::run_threads(2, [&](Communicator& of_rank) {
    auto* comm = &of_rank;
    const int64_t step = 48;
    const auto loader = batches_of(comm->rank(), 784);
    CheckpointFolder checkpoints(*comm, folder.string());
    auto gatherer = std::make_shared<nn::Gatherer>();  // for stage 3 alone
    nn::Sequential model;
    model.add("fc1", nn::gathered(nn::linear(784, 96), gatherer)).add("relu", nn::relu());
    model.add("fc2", nn::gathered(nn::linear(96, 10), gatherer));
    nn::ShardedOptimizer<nn::Adam> optimizer(*comm, model.parameters(), nn::AdamOptions{},
                                             {.stage = 3});
    optimizer.serve(gatherer);
    for (const auto& [images, labels] : loader) {
      optimizer.zero_grad();  // not the model's, which would write them all
      nn::CrossEntropy loss(model.forward(images), labels);
      model.backward(loss);
      optimizer.clip_by_global_norm(1.0);
      optimizer.step();
    }
    checkpoints.save(step, optimizer.state());  // each rank its part; docs/checkpoints.md
    optimizer.need_all();
    expect_that_it_learned(*comm, model, loader);
    EXPECT_EQ(checkpoints.load(optimizer.state())->step, step);
  });
  fs::remove_all(folder);
}

TEST(Pages, ATrainingThatGoesOn) {
  const test::ScratchFolder scratch;
  test::run_threads(2, [&](Communicator& of_rank) {
    auto* comm = &of_rank;
    const Dataset data{Tensor(Shape{40, 1, 2, 2}, DataType::u8), Tensor(Shape{40}, DataType::u8),
                       10};
    for (int run = 0; run < 2; ++run) {
      DataLoader loader(data, {.batch = 4, .rank = comm->rank(), .size = comm->size()});
      Sequential model(static_cast<uint64_t>(run));
      model.add("flatten", flatten()).add("fc", linear(4, 10));
      nn::Adam adam(model.parameters(), {});
      auto optimizer = tutti::distributed(*comm, adam);
      nn::StepAgreement agreement(*comm);
      CheckpointFolder checkpoints(*comm, scratch.path());
      int64_t step = 0;
      nn::TrainingState training(*comm, model, optimizer, agreement, loader);
      if (const auto found = training.load(checkpoints)) step = found->step;
      // ... train
      training.save(checkpoints, step);  // or save_in_background
      EXPECT_EQ(step, 3 * run);
      EXPECT_EQ(loader.position().step, run);
      EXPECT_TRUE(loader.next());
      training.save(checkpoints, step + 3);
    }
  });
}

TEST(Pages, WhatAllRanksAgreeOnInAStep) {
  test::run_threads(2, [](Communicator& of_rank) {
    auto* comm = &of_rank;
    const auto loader = batches_of(comm->rank(), 40);
    Sequential model;
    model.add("fc", linear(40, 10));
    nn::Sgd sgd(model.parameters(), {.learning_rate = 0.5, .momentum = 0.9});
    auto optimizer = tutti::distributed(*comm, sgd, {.op = tutti::ReduceOp::sum});
    nn::StepAgreement agreement(*comm, {.clip = 1, .loss_scale = {.first = 1024}});
    for (const auto& [images, labels] : loader) {
      model.zero_grad();
      nn::CrossEntropy loss(model.forward(images), labels);
      model.backward(loss, agreement.divisor());
      agreement.send(loss);
      optimizer.synchronize();
      if (agreement.finish(sgd.parameters()).is_skipped)
        optimizer.skip();
      else
        optimizer.step();
    }
    expect_that_it_learned(*comm, model, loader);
  });
}

}  // namespace
}  // namespace tutti::nn
