// The values that ranks agree on in each step: samples, skipped steps, loss scale and clipping.
// Also covers the sentinel, and training in 16 bits.

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>

#include "tests/nn/layer_check.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tutti/adapters/nn/steps/steps.h"
#include "tutti/nn.h"

namespace tutti::nn {
namespace {

using test::expect_error;
using test::expect_refused;
using test::Values;
using test::values_of;

Tensor labels_of(const std::vector<int64_t>& labels) {
  const Tensor tensor(Shape{static_cast<int64_t>(labels.size())}, DataType::i64);
  std::copy(labels.begin(), labels.end(), tensor.as<int64_t>());
  return tensor;
}

Sequential small_model() {
  Sequential model(5);
  model.add("fc1", linear(4, 6)).add("tanh", nn::tanh()).add("fc2", linear(6, 3));
  return model;
}

Values values_of(const std::vector<Parameter>& parameters) {
  Values all;
  for (const auto& parameter : parameters) {
    const auto values = test::values_of(parameter.value);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

// Returns the parameters after some steps in which each rank takes its part of the same joined
// batches.
Values train_parts(const std::vector<int64_t>& parts, const StepOptions& options) {
  const int64_t rows = std::accumulate(parts.begin(), parts.end(), int64_t{0});
  Values result;
  std::mutex mutex;
  test::run_threads(static_cast<int>(parts.size()), [&](Communicator& comm) {
    auto model = small_model();
    Sgd sgd(model.parameters(), {.learning_rate = 0.5, .momentum = 0.9});
    auto optimizer = distributed(comm, sgd, {.op = ReduceOp::sum});
    StepAgreement agreement(comm, options);
    const int64_t first = std::accumulate(parts.begin(), parts.begin() + comm.rank(), int64_t{0});
    const int64_t count = parts[static_cast<size_t>(comm.rank())];
    for (unsigned step = 0; step < 10; ++step) {
      const auto all = values_of(test::noise_tensor(Shape{rows, 4}, step));
      const auto images = test::tensor_of(
          Shape{count, 4}, Values(all.begin() + first * 4, all.begin() + (first + count) * 4));
      std::vector<int64_t> labels;
      for (int64_t i = first; i < first + count; ++i) labels.push_back((i + step) % 3);
      model.zero_grad();
      const CrossEntropy loss(model.forward(images), labels_of(labels));
      model.backward(loss, agreement.divisor());
      agreement.send(loss);
      optimizer.synchronize();
      const auto outcome = agreement.finish(sgd.parameters());
      EXPECT_EQ(outcome.samples, rows);
      EXPECT_FALSE(outcome.is_skipped);
      optimizer.step();
    }
    const std::lock_guard lock(mutex);
    const auto values = values_of(sgd.parameters());
    if (result.empty()) result = values;
    EXPECT_EQ(values, result) << "ranks differ";
  });
  return result;
}

TEST(StepAgreement, UnevenBatchesAreTheJoinedBatch) {
  const auto joined = train_parts({8}, {});
  for (const auto& parts :
       std::vector<std::vector<int64_t>>{{5, 3}, {8, 0}, {0, 1, 3, 4}, {2, 2, 2, 2}}) {
    const auto values = train_parts(parts, {});
    ASSERT_EQ(values.size(), joined.size());
    for (size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], joined[i], 2e-6) << i;
  }
}

TEST(StepAgreement, LossScalesChangeNoBits) {
  const auto plain = train_parts({5, 3}, {});
  EXPECT_EQ(train_parts({5, 3}, {.loss_scale = {.first = 1024}}), plain);
  EXPECT_EQ(train_parts({5, 3}, {.loss_scale = {.first = 65536, .growth = 2, .clean = 3}}), plain);
  EXPECT_NE(train_parts({5, 3}, {.clip = 0.01}), plain);
}

// A NaN in one rank's gradient, or an infinity or a NaN in its loss: every rank skips that step.
TEST(StepAgreement, WhatIsNoNumberAnywhereSkipsTheStepEverywhere) {
  for (const int culprit : {0, 2})
    for (const bool in_loss : {false, true})
      test::run_threads(3, [&](Communicator& comm) {
        auto model = small_model();
        Sgd sgd(model.parameters(), {.learning_rate = 0.5, .momentum = 0.9});
        auto optimizer = distributed(comm, sgd, {.op = ReduceOp::sum});
        StepAgreement agreement(comm, {.loss_scale = {.first = 256}});
        for (unsigned step = 0; step < 6; ++step) {
          const auto images = test::noise_tensor(Shape{2, 4}, step);
          const bool is_bad = step == 3 && comm.rank() == culprit;
          if (is_bad && in_loss) images.as<float>()[5] = std::numeric_limits<float>::quiet_NaN();
          model.zero_grad();
          const CrossEntropy loss(model.forward(images), labels_of({0, 2}));
          if (is_bad && !in_loss)
            model.parameters()[1].gradient.as<float>()[2] = std::numeric_limits<float>::infinity();
          model.backward(loss, agreement.divisor());
          agreement.send(loss);
          optimizer.synchronize();
          const auto before = values_of(sgd.parameters());
          const auto velocity = test::values_of(sgd.state()[0].tensor);
          const auto outcome = agreement.finish(sgd.parameters());
          EXPECT_EQ(outcome.is_skipped, step == 3);
          if (outcome.is_skipped)
            optimizer.skip();
          else
            optimizer.step();
          EXPECT_EQ(values_of(sgd.parameters()) == before, step == 3);
          EXPECT_EQ(test::values_of(sgd.state()[0].tensor) == velocity, step == 3);
          EXPECT_EQ(agreement.scale(), step < 3 ? 256 : 128);
          EXPECT_EQ(agreement.skipped_steps(), step < 3 ? 0 : 1);
        }
      });
}

TEST(StepAgreement, ScalesGrowAfterCleanSteps) {
  test::run_threads(1, [](Communicator& comm) {
    auto model = small_model();
    StepAgreement agreement(comm, {.loss_scale = {.first = 4, .clean = 3}});
    for (int step = 1; step <= 7; ++step) {
      agreement.send(
          CrossEntropy(model.forward(test::noise_tensor(Shape{2, 4}, 1)), labels_of({0, 2})));
      agreement.finish(model.parameters());
      EXPECT_EQ(agreement.scale(), step < 3 ? 4 : step < 6 ? 8 : 16) << step;
    }
    EXPECT_EQ(agreement.state()[0].tensor.as<double>()[0], 16);
  });
}

TEST(StepAgreement, ScalesGrowNoFurtherThanALossCanBearThem) {
  test::run_threads(1, [](Communicator& comm) {
    auto model = small_model();
    StepAgreement agreement(comm, {.loss_scale = {.first = 0x1p99, .growth = 4, .clean = 1}});
    for (int step = 0; step < 3; ++step) {
      agreement.send(
          CrossEntropy(model.forward(test::noise_tensor(Shape{2, 4}, 1)), labels_of({0, 2})));
      agreement.finish(model.parameters());
      EXPECT_EQ(agreement.scale(), 0x1p100) << step;
    }
  });
}

TEST(StepAgreement, AfterASkipTheCleanStepsAreCountedAnew) {
  test::run_threads(1, [](Communicator& comm) {
    auto model = small_model();
    StepAgreement agreement(comm, {.loss_scale = {.first = 16, .clean = 3}});
    const auto step = [&](float factor) {
      auto images = test::noise_tensor(Shape{2, 4}, 1);
      for (float& value : images.span<float>()) value *= factor;
      agreement.send(CrossEntropy(model.forward(images), labels_of({0, 2})));
      return agreement.finish(model.parameters()).is_skipped;
    };
    for (int i = 0; i < 2; ++i) EXPECT_FALSE(step(1));
    EXPECT_TRUE(step(std::numeric_limits<float>::quiet_NaN()));
    EXPECT_EQ(agreement.scale(), 8);
    for (int i = 0; i < 2; ++i) EXPECT_FALSE(step(1));
    EXPECT_EQ(agreement.scale(), 8);
    EXPECT_FALSE(step(1));
    EXPECT_EQ(agreement.scale(), 16);
  });
}

TEST(StepAgreement, WhatCannotGoOnIsAnErrorOnEveryRank) {
  test::run_threads(2, [](Communicator& comm) {
    auto model = small_model();
    const auto loss_of = [&](float value, int64_t count) {
      const Tensor logits(Shape{count, 3}, DataType::f32);
      for (float& logit : logits.span<float>()) logit = value;
      return CrossEntropy(logits, Tensor(Shape{count}, DataType::i64));
    };
    const auto good = loss_of(0, 2),
               bad = loss_of(comm.rank() == 1 ? std::numeric_limits<float>::quiet_NaN() : 0, 2);
    const auto step = [&](StepAgreement& agreement, const Loss& loss, bool is_training = true) {
      agreement.send(loss, is_training);
      return agreement.finish(model.parameters());
    };
    StepAgreement floor(comm, {.loss_scale = {.first = 4, .least = 2}});
    EXPECT_TRUE(step(floor, bad).is_skipped);
    expect_refused(
        "step agreement: a gradient is not finite at the least loss scale, 2; lower the learning "
        "rate, or train in bf16 or f32",
        [&] { step(floor, bad); });
    StepAgreement patient(comm, {.most_skips = 2});
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(step(patient, bad).is_skipped);
    expect_refused(
        "step agreement: 3 steps in a row had a loss or a gradient that is not finite; "
        "lower the learning rate",
        [&] { step(patient, bad); });
    StepAgreement agreement(comm);
    expect_error(ErrorCode::mismatch,
                 "step agreement: 1 of 2 ranks are in training, the others in evaluation; "
                 "set_training() must be called with the same value on all",
                 [&] { step(agreement, good, comm.rank() == 0); });
    expect_refused("step agreement: no rank had a sample in this step; leave the step out on all",
                   [&] { step(agreement, loss_of(0, 0)); });
    expect_refused("step agreement: finish() came before send(), which gives this rank's part",
                   [&] { agreement.finish(model.parameters()); });
    agreement.send(good);
    expect_refused("step agreement: send() came twice in a step; call finish() between",
                   [&] { agreement.send(good); });
    EXPECT_FALSE(agreement.finish(model.parameters()).is_skipped);
    expect_refused(
        "step agreement: loss scale first=1, least=2, growth=2, backoff=0.5, "
        "clean=2000, clip=0, most_skips=100; expected 0 < least <= first",
        [&] { StepAgreement(comm, {.loss_scale = {.first = 1, .least = 2}}); });
    Sgd sgd(model.parameters(), {});
    auto local = distributed(comm, sgd, {.exchange = local_sgd(4)});
    expect_refused(
        "skip() excludes an exchange policy of parameters or changes, which counts the "
        "steps itself; call step()",
        [&] { local.skip(); });
  });
}

// The shares follow the option, and all ranks must share the same number of samples.
TEST(StepAgreement, SharesAreEqualOrFollowTheSpeed) {
  test::run_threads(3, [](Communicator& comm) {
    StepAgreement equal(comm, {.shares = {.samples = 7}});
    EXPECT_EQ(equal.shares(), (std::vector<int64_t>{3, 2, 2}));
    const auto share = equal.begin();
    EXPECT_EQ(share.first, comm.rank() == 0 ? 0 : comm.rank() == 1 ? 3 : 5);
    EXPECT_EQ(share.count, comm.rank() == 0 ? 3 : 2);
    // Rank 1 takes thirty times as long per sample, so that it is the slowest even if other
    // programs use the cores.
    auto model = small_model();
    StepAgreement agreement(comm,
                            {.shares = {.samples = 12, .follow_speed = true, .window = 0.05}});
    int64_t samples = 0;
    // The first change of shares may be undone if other programs slow a rank down.
    for (int step = 0; step < 8 || (agreement.shares()[1] >= 4 && step < 60); ++step) {
      const auto mine = agreement.begin();
      EXPECT_EQ(mine.count, agreement.shares()[static_cast<size_t>(comm.rank())]);
      std::this_thread::sleep_for(
          std::chrono::milliseconds((comm.rank() == 1 ? 30 : 1) * mine.count));
      const CrossEntropy loss(model.forward(test::noise_tensor(Shape{mine.count, 4}, 1)),
                              Tensor(Shape{mine.count}, DataType::i64));
      model.backward(loss, agreement.divisor());
      agreement.send(loss);
      samples = agreement.finish(model.parameters()).samples;
      EXPECT_EQ(samples, 12);
    }
    EXPECT_LT(agreement.shares()[1], 4);
    expect_error(
        ErrorCode::mismatch,
        "step agreement: shares.samples is from 12 to 13 on the ranks and " +
            std::to_string(comm.rank() == 1 ? 13 : 12) + " on this one; it must be the same on all",
        [&] {
          StepAgreement(comm,
                        {.shares = {.samples = comm.rank() == 1 ? 13 : 12, .follow_speed = true}});
        });
  });
}

// The time that a rank waits for others must not count as its own.
TEST(StepAgreement, WhatARankWaitsIsNotItsOwnTime) {
  test::run_threads(2, [](Communicator& comm) {
    auto model = small_model();
    StepAgreement agreement(comm, {.shares = {.samples = 8, .follow_speed = true, .window = 0.1}});
    for (int step = 0; step < 6 || (agreement.shares()[0] <= 4 && step < 60); ++step) {
      const auto mine = agreement.begin();
      // Rank 0 does 10 ms of work and then waits for rank 1, as a batch norm over all ranks would.
      std::this_thread::sleep_for(
          std::chrono::milliseconds(comm.rank() == 0 ? 10 : 25 * mine.count));
      EXPECT_EQ(comm.allreduce_blocking("moments", 1.0F, ReduceOp::sum), 2);
      const CrossEntropy loss(model.forward(test::noise_tensor(Shape{mine.count, 4}, 1)),
                              Tensor(Shape{mine.count}, DataType::i64));
      agreement.send(loss);
      agreement.finish(model.parameters());
    }
    EXPECT_GT(agreement.shares()[0], 4);
  });
}

// One flipped bit is found and named by the next check, whatever the number of ranks.
TEST(Sentinel, NamesTheFlippedBit) {
  for (const int size : {2, 3, 5})
    test::run_threads(size, [&](Communicator& comm) {
      auto model = small_model();
      Sentinel sentinel(comm, model.parameters(), 4);
      for (int64_t step = 1; step < 8; ++step) {
        sentinel.look(step);
        if (step == 5 && comm.rank() == 1) {
          uint32_t bits = 0;
          float* value = model.parameters()[2].value.as<float>() + 7;
          std::memcpy(&bits, value, sizeof(bits));
          bits ^= 1;
          std::memcpy(value, &bits, sizeof(bits));
        }
      }
      expect_error(ErrorCode::mismatch,
                   size == 2 ? "sentinel: at step 8 parameter \"fc2.weight\" differs on rank 0, 1, "
                               "and none has a majority; go back to the last checkpoint"
                             : "sentinel: at step 8 parameter \"fc2.weight\" differs on rank 1, "
                               "while the others agree; go back to the last checkpoint",
                   [&] { sentinel.look(8); });
    });
}

TEST(Sentinel, LooksEverySoManySteps) {
  test::run_threads(1, [](Communicator& comm) {
    expect_refused("sentinel: it cannot compare every 0 steps; expected at least 1",
                   [&] { Sentinel(comm, {}, 0); });
    Sentinel(comm, small_model().parameters(), 1).look(1);
  });
}

// Returns the mean loss over 2000 digits after 200 steps of training on them.
double trained_loss(std::optional<DataType> dtype, const StepOptions& options) {
  double loss_after = 0;
  test::run_threads(1, [&](Communicator& comm) {
    static const Dataset digits =
        read_mnist(std::string(TUTTI_MNIST) + "/t10k-images-idx3-ubyte.gz",
                   std::string(TUTTI_MNIST) + "/t10k-labels-idx1-ubyte.gz");
    Sequential model(3);
    if (dtype) model.add("narrow", cast_to(*dtype));
    model.add("conv1", conv2d(1, 4, 5)).add("relu1", relu()).add("pool1", max_pool2d(2));
    model.add("flatten", flatten()).add("fc1", linear(4 * 12 * 12, 10));
    Sgd sgd(model.parameters(), {.learning_rate = 0.05, .momentum = 0.9});
    auto optimizer = distributed(comm, sgd, {.op = ReduceOp::sum});
    StepAgreement agreement(comm, options);
    DataLoader loader(digits, {.batch = 32, .seed = 3});
    for (int step = 0; step < 200; ++step) {
      auto batch = loader.next();
      if (!batch) batch = loader.next();
      // A batch whose step was skipped is repeated, so that all types learn the same.
      for (bool is_taken = false; !is_taken;) {
        model.zero_grad();
        const CrossEntropy loss(model.forward(batch->images), batch->labels);
        model.backward(loss, agreement.divisor());
        agreement.send(loss);
        optimizer.synchronize();
        is_taken = !agreement.finish(sgd.parameters()).is_skipped;
        if (is_taken)
          optimizer.step();
        else
          optimizer.skip();
      }
    }
    DataLoader all(digits, {.batch = 100, .shuffle = false});
    for (int i = 0; i < 20; ++i) {
      const auto batch = all.next();
      loss_after += CrossEntropy(model.forward(batch->images), batch->labels).value() / 20;
    }
    // The first loss scale is too large for f16 only, so f16 must skip steps.
    EXPECT_EQ(agreement.skipped_steps() > 0, dtype == DataType::f16);
  });
  return loss_after;
}

TEST(SixteenBitTraining, ReachesTheLossOfF32) {
  const double expected = trained_loss({}, {});
  EXPECT_LT(expected, 0.6);
  EXPECT_NEAR(trained_loss(DataType::bf16, {}), expected, 0.02 * expected);
  EXPECT_NEAR(trained_loss(DataType::f16, {.loss_scale = {.first = 0x1p17}}), expected,
              0.02 * expected);
}

}  // namespace
}  // namespace tutti::nn
