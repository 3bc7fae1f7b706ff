// A training that is saved and loaded continues bit by bit: parameters, buffers, moments, loss
// scale, exchange and position in the data. A checkpoint that lacks any of them is refused.

#include "tutti/adapters/nn/training_state.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch_folder.h"
#include "tutti/adapters/nn/layers/layers.h"
#include "tutti/adapters/nn/layers/loss.h"
#include "tutti/adapters/nn/sharded.h"
#include "tutti/nn.h"

namespace tutti::nn {
namespace {

const Dataset& dataset() {
  static const Dataset kData = [] {
    Dataset data{Tensor(Shape{96, 2, 3, 3}, DataType::u8), Tensor(Shape{96}, DataType::u8), 4};
    for (int64_t i = 0; i < data.images.count(); ++i)
      data.images.as<uint8_t>()[i] = static_cast<uint8_t>(i * i * 7 + i / 5);
    for (int64_t i = 0; i < 96; ++i)
      data.labels.as<uint8_t>()[i] = static_cast<uint8_t>(i * 5 / 3 % 4);
    return data;
  }();
  return kData;
}

Sequential model_with_norm(uint64_t seed, const std::shared_ptr<Gatherer>& gatherer = nullptr) {
  const auto add = [&](std::unique_ptr<Layer> layer) {
    return gatherer ? gathered(std::move(layer), gatherer) : std::move(layer);
  };
  Sequential model(seed);
  model.add("norm", add(batch_norm(2)))
      .add("flatten", flatten())
      .add("fc1", add(linear(18, 9)))
      .add("relu", relu())
      .add("fc2", add(linear(9, 4)));
  return model;
}

// Returns all floating-point state of a training.
std::vector<float> values_of(const TrainingState& training) {
  std::vector<float> all;
  for (const auto& tensor : training.tensors())
    for (int64_t i = 0; i < tensor.here.count(); ++i)
      all.push_back(tensor.here.dtype() == DataType::f32 ? tensor.here.as<float>()[i]
                    : tensor.here.dtype() == DataType::f64
                        ? static_cast<float>(tensor.here.as<double>()[i])
                        : 0.0F);
  return all;
}

struct Run {
  Communicator& comm;
  const std::string& folder;
  uint64_t seed;
  int from, to;  // steps; saves after step 5, and starts from that checkpoint unless `from` is 0
  bool in_background = false;
};

constexpr int kSavedAt = 5;

// Trains as one rank; `optimizer` is the distributed one.
template <class O, class Gradients>
std::vector<float> trained(const Run& run, Sequential& model, O& optimizer,
                           const Gradients& gradients) {
  StepAgreement agreement(run.comm, {.loss_scale = {.first = 64, .clean = 3}});
  DataLoader loader(dataset(),
                    {.batch = 4, .rank = run.comm.rank(), .size = run.comm.size(), .seed = 3});
  TrainingState training(run.comm, model, optimizer, agreement, loader);
  CheckpointFolder checkpoints(run.comm, run.folder);
  if (run.from > 0) {
    const auto found = training.load(checkpoints);
    EXPECT_EQ(found->step, kSavedAt);
  }
  for (int step = run.from; step < run.to; ++step) {
    auto batch = loader.next();
    if (!batch) batch = loader.next();
    if constexpr (requires { optimizer.zero_grad(); })
      optimizer.zero_grad();
    else
      model.zero_grad();
    const CrossEntropy loss(model.forward(batch->images), batch->labels);
    model.backward(loss, agreement.divisor());
    agreement.send(loss);
    optimizer.synchronize();
    if (agreement.finish(gradients()).is_skipped)
      optimizer.skip();
    else
      optimizer.step();
    if (step + 1 == kSavedAt && run.from == 0) {
      if (run.in_background)
        training.save_in_background(checkpoints, kSavedAt);
      else
        training.save(checkpoints, kSavedAt);
    }
  }
  return values_of(training);
}

std::vector<float> with_adam(const Run& run) {
  auto model = model_with_norm(run.seed);
  Adam adam(model.parameters(), {.learning_rate = 0.01});
  auto optimizer = distributed(run.comm, adam, {.op = ReduceOp::sum});
  return trained(run, model, optimizer, [&] { return adam.parameters(); });
}

std::vector<float> in_parts(const Run& run) {
  const auto gatherer = std::make_shared<Gatherer>();
  auto model = model_with_norm(run.seed, gatherer);
  ShardedOptimizer<Adam> optimizer(run.comm, model.parameters(), AdamOptions{.learning_rate = 0.01},
                                   {.stage = 3, .op = ReduceOp::sum});
  optimizer.serve(gatherer);
  return trained(run, model, optimizer, [&] { return optimizer.gradients(); });
}

void expect_to_go_on(const std::function<std::vector<float>(const Run&)>& train,
                     bool in_background) {
  const test::ScratchFolder scratch;
  test::run_threads(3, [&](Communicator& comm) {
    const auto whole = train({comm, scratch.path(), 1, 0, 12, in_background});
    const auto resumed = train({comm, scratch.path(), 2, kSavedAt, 12});
    ASSERT_EQ(whole.size(), resumed.size());
    EXPECT_EQ(std::memcmp(whole.data(), resumed.data(), whole.size() * sizeof(float)), 0);
  });
}

TEST(TrainingState, GoesOnToTheBit) {
  for (const bool in_background : {false, true}) expect_to_go_on(with_adam, in_background);
}
TEST(TrainingState, GoesOnToTheBitInParts) { expect_to_go_on(in_parts, false); }

// Covers averaged parameters whose outer step has a momentum, one plain optimizer, and a sampler.
TEST(TrainingState, TheExchangeAndASamplerComeBack) {
  const test::ScratchFolder scratch;
  test::run_threads(2, [&](Communicator& comm) {
    const auto train = [&](uint64_t seed, int from, int to) {
      auto model = model_with_norm(seed);
      Sgd sgd(model.parameters(), {.learning_rate = 0.05, .momentum = 0.5});
      auto optimizer = distributed(comm, sgd, {.exchange = diloco(2)});
      Sampler sampler(96, {.seed = 5});
      TrainingState training(comm, model, optimizer, sampler);
      CheckpointFolder checkpoints(comm, scratch.path());
      if (from > 0) {
        EXPECT_TRUE(training.load(checkpoints));
      } else {
        EXPECT_FALSE(training.load(checkpoints));
      }
      for (int step = from; step < to; ++step) {
        const auto samples = sampler.take(4, comm.rank(), comm.size());
        Tensor images(Shape{4, 2, 3, 3}, DataType::f32), labels(Shape{4}, DataType::i64);
        for (int64_t i = 0; i < images.count(); ++i)
          images.as<float>()[i] =
              static_cast<float>(samples[static_cast<size_t>(i / 18)] * (i + 1) % 11) / 11;
        model.zero_grad();
        model.backward(CrossEntropy(model.forward(images), labels));
        optimizer.step();
        if (step + 1 == kSavedAt && from == 0) training.save(checkpoints, kSavedAt);
      }
      return values_of(training);
    };
    const auto whole = train(1, 0, 9), resumed = train(2, kSavedAt, 9);
    ASSERT_EQ(whole.size(), resumed.size());
    EXPECT_EQ(std::memcmp(whole.data(), resumed.data(), whole.size() * sizeof(float)), 0);
  });
}

// Only the head of the model is trained, and the batch norm statistics differ between ranks.
TEST(TrainingState, WhatNobodyTrainsIsSavedToo) {
  const test::ScratchFolder scratch;
  test::run_threads(2, [&](Communicator& comm) {
    auto model = model_with_norm(1), other = model_with_norm(2);
    const auto head_of = [](const Sequential& all) {
      auto parameters = all.parameters();
      return std::vector<Parameter>(parameters.end() - 2, parameters.end());
    };
    Sgd sgd(head_of(model), {.learning_rate = 0.1}), other_sgd(head_of(other), {});
    auto optimizer = distributed(comm, sgd);
    auto buffers = model.buffers();
    ASSERT_EQ(buffers.size(), 2U);
    buffers[0].tensor.as<float>()[0] = static_cast<float>(comm.rank() + 7);
    CheckpointFolder checkpoints(comm, scratch.path());
    TrainingState(comm, model, optimizer).save(checkpoints, 1);
    EXPECT_TRUE(TrainingState(comm, other, other_sgd).load(checkpoints));
    EXPECT_EQ(other.buffers()[0].tensor.as<float>()[0], static_cast<float>(comm.rank() + 7));
    const auto parameters = model.parameters(), loaded = other.parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto &was = parameters[i].value, &is = loaded[i].value;
      EXPECT_EQ(std::memcmp(was.data(), is.data(), static_cast<size_t>(was.bytes())), 0) << i;
    }
  });
  // On another number of ranks, the statistics are the mean.
  test::run_threads(1, [&](Communicator& comm) {
    auto model = model_with_norm(2);
    Sgd sgd(model.parameters(), {});
    CheckpointFolder checkpoints(comm, scratch.path());
    TrainingState(comm, model, sgd).load(checkpoints);
    EXPECT_EQ(model.buffers()[0].tensor.as<float>()[0], 7.5F);
  });
}

// The checkpoint is saved directly and has only parameters and moments.
TEST(TrainingState, ACheckpointThatLacksAnythingIsRefusedAndChangesNothing) {
  const test::ScratchFolder scratch;
  test::run_threads(2, [&](Communicator& comm) {
    auto model = model_with_norm(1);
    Adam adam(model.parameters(), {});
    StepAgreement agreement(comm);
    DataLoader loader(dataset(), {.batch = 4, .rank = comm.rank(), .size = comm.size()});
    CheckpointFolder checkpoints(comm, scratch.path());
    auto tensors = placed_parameters(model.parameters());
    for (auto& state : placed_state(adam.state())) tensors.push_back(state);
    auto other = model_with_norm(2);
    Adam moments(other.parameters(), {});
    const auto first = other.parameters()[0].value;
    const auto before = other.parameters()[2].value.as<float>()[0];
    const auto refused = [&](const std::string& text, auto&... parts) {
      test::expect_error(ErrorCode::corrupt_data, text,
                         [&] { TrainingState(comm, other, moments, parts...).load(checkpoints); });
      EXPECT_EQ(other.parameters()[2].value.as<float>()[0], before);
    };
    checkpoints.save(1, tensors);
    refused("\"buffer.norm.running_mean\" is not in it");
    TrainingState(comm, model, adam).save(checkpoints, 2);
    refused("\"step_agreement\" is not in it", agreement);
    refused("has no word \"loader.epoch\", which this training saves", loader);
    Sampler sampler(9);
    refused("has no word \"sampler\", which this training saves", sampler);
    // A checkpoint with additional entries is refused too.
    TrainingState(comm, model, adam, agreement).save(checkpoints, 3);
    refused("\"step_agreement\" is in it, and nobody asked for it");
    auto state = TrainingState(comm, model, adam);
    checkpoints.save(4, state.tensors(),
                     {{"loader.epoch", "1"},
                      {"loader.step", "two"},
                      {"loader.consumed", "3"},
                      {"loader.order", "2"}});
    refused("word \"loader.step\" is \"two\", expected a whole number", loader);
    checkpoints.save(5, state.tensors(), {{"sampler", "of something else"}});
    refused("of something else", sampler);
  });
}

}  // namespace
}  // namespace tutti::nn
