// A small ResNet, whose batch norm spans all ranks, and a small GPT-2. Training on several ranks
// must equal training on one rank with the joined batch, in 16 bits as well as in 32.

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <numeric>
#include <optional>

#include "tests/support/ranks.h"
#include "tutti/kernels/counter_random.h"
#include "tutti/nn.h"

namespace tutti::nn {
namespace {

// A model and its data.
struct Task {
  const char* name;
  std::function<Sequential(Communicator&, std::optional<DataType>)> model;
  /// Returns rows `first` to first + count of a step's joined batch, and their targets.
  std::function<std::pair<Tensor, Tensor>(uint32_t step, int64_t first, int64_t count)> batch;
  double rate;
};

void narrow(Sequential& model, std::optional<DataType> dtype) {
  if (dtype) model.add("narrow", cast_to(*dtype));
}

std::unique_ptr<Layer> block(Communicator& comm, int64_t in, int64_t out, int64_t stride) {
  auto body = std::make_unique<Chain>();
  body->add("conv1", conv2d(in, out, 3, {.stride = stride, .padding = 1, .bias = false}))
      .add("norm1", sync_batch_norm(comm, out))
      .add("relu", relu())
      .add("conv2", conv2d(out, out, 3, {.padding = 1, .bias = false}))
      .add("norm2", sync_batch_norm(comm, out));
  std::unique_ptr<Chain> shortcut;
  if (in != out) {
    shortcut = std::make_unique<Chain>();
    shortcut->add("conv", conv2d(in, out, 1, {.stride = stride, .bias = false}))
        .add("norm", sync_batch_norm(comm, out));
  }
  return residual(std::move(body), std::move(shortcut));
}

Sequential small_resnet(Communicator& comm, std::optional<DataType> dtype) {
  Sequential model(11);
  narrow(model, dtype);
  model.add("conv", conv2d(1, 8, 3, {.stride = 2, .padding = 1, .bias = false}))
      .add("norm", sync_batch_norm(comm, 8))
      .add("relu", relu())
      .add("block1", block(comm, 8, 8, 1))
      .add("relu1", relu())
      .add("block2", block(comm, 8, 16, 2))
      .add("relu2", relu())
      .add("mean", global_average_pool())
      .add("fc", linear(16, 10));
  return model;
}

std::pair<Tensor, Tensor> digits(uint32_t step, int64_t first, int64_t count) {
  static const Dataset data = read_mnist(std::string(TUTTI_MNIST) + "/t10k-images-idx3-ubyte.gz",
                                         std::string(TUTTI_MNIST) + "/t10k-labels-idx1-ubyte.gz");
  const Tensor images(Shape{count, 1, 28, 28}, DataType::f32), labels(Shape{count}, DataType::i64);
  const RandomKey key{.seed = 5, .purpose = random_purpose("digit"), .step = step};
  for (int64_t i = 0; i < count; ++i) {
    const auto source =
        random_block(key, static_cast<uint64_t>(first + i))[0] % data.images.shape()[0];
    for (int64_t p = 0; p < 784; ++p)
      images.as<float>()[i * 784 + p] =
          static_cast<float>(data.images.as<uint8_t>()[source * 784 + p]) / 255.0F - 0.5F;
    labels.as<int64_t>()[i] = data.labels.as<uint8_t>()[source];
  }
  return {images, labels};
}

constexpr int64_t kLength = 24;

Sequential small_gpt2(Communicator&, std::optional<DataType> dtype) {
  constexpr int64_t kWidth = 32;
  Sequential model(12);
  auto tokens = embedding(256, kWidth, {.positions = kLength});
  auto head = tied_linear(*tokens);
  model.add("tokens", std::move(tokens));
  narrow(model, dtype);
  for (const char* name : {"a", "b"}) {
    auto mix = std::make_unique<Chain>();
    mix->add("norm", layer_norm(kWidth))
        .add("qkv", linear(kWidth, 3 * kWidth, {.deviation = 0.05}))
        .add("attention", attention({.heads = 2}))
        .add("out", linear(kWidth, kWidth, {.deviation = 0.05}))
        .add("dropout", dropout(0.1));
    auto feed = std::make_unique<Chain>();
    feed->add("norm", layer_norm(kWidth))
        .add("up", linear(kWidth, 4 * kWidth, {.deviation = 0.05}))
        .add("gelu", gelu())
        .add("down", linear(4 * kWidth, kWidth, {.deviation = 0.05}));
    model.add(std::string("mix_") + name, residual(std::move(mix)))
        .add(std::string("feed_") + name, residual(std::move(feed)));
  }
  model.add("norm", layer_norm(kWidth)).add("head", std::move(head));
  return model;
}

std::pair<Tensor, Tensor> text(uint32_t step, int64_t first, int64_t count) {
  static const auto bytes = read_file(TUTTI_TEXT);
  const Tensor input(Shape{count, kLength}, DataType::i64), next(input.shape(), DataType::i64);
  const RandomKey key{.seed = 6, .purpose = random_purpose("place"), .step = step};
  for (int64_t row = 0; row < count; ++row) {
    const auto place =
        random_block(key, static_cast<uint64_t>(first + row))[0] % (bytes.size() - kLength - 1);
    for (int64_t i = 0; i < kLength; ++i) {
      const auto at = place + static_cast<size_t>(i);
      input.as<int64_t>()[row * kLength + i] = static_cast<int64_t>(bytes[at]);
      next.as<int64_t>()[row * kLength + i] = static_cast<int64_t>(bytes[at + 1]);
    }
  }
  return {input, next};
}

const Task kTasks[] = {{"small ResNet", small_resnet, digits, 0.02},
                       {"small gpt2", small_gpt2, text, 0.5}};

struct Run {
  std::vector<float> gradient;  // all parameters' gradient in the first step
  std::vector<double> losses;
  double loss_after = 0;  // on rows that were not used for training
  int64_t skipped = 0;
};

// Takes steps of SGD in which each rank gets its part of the same joined batches. A skipped step is
// repeated, so that all types learn the same.
Run train(const Task& task, const std::vector<int64_t>& parts, int steps,
          std::optional<DataType> dtype = {}, const StepOptions& options = {}) {
  Run run;
  std::mutex mutex;
  test::run_threads(
      static_cast<int>(parts.size()),
      [&](Communicator& comm) {
        auto model = task.model(comm, dtype);
        Sgd sgd(model.parameters(), {.learning_rate = task.rate, .momentum = 0.9});
        auto optimizer = distributed(comm, sgd, {.op = ReduceOp::sum});
        StepAgreement agreement(comm, options);
        const int64_t first =
            std::accumulate(parts.begin(), parts.begin() + comm.rank(), int64_t{0});
        const int64_t count = parts[static_cast<size_t>(comm.rank())];
        Run mine;
        const CosineSchedule rate{.base = task.rate, .total = steps};
        for (int step = 0; step < steps;) {
          const auto [input, wanted] = task.batch(static_cast<uint32_t>(step), first, count);
          model.set_step(static_cast<uint32_t>(step), first);
          sgd.set_learning_rate(rate(step));
          model.zero_grad();
          const CrossEntropy loss(model.forward(input), wanted);
          model.backward(loss, agreement.divisor());
          agreement.send(loss);
          optimizer.synchronize();
          const auto outcome = agreement.finish(sgd.parameters());
          if (outcome.is_skipped) {
            optimizer.skip();
            continue;
          }
          if (step == 0)
            for (const auto& parameter : sgd.parameters()) {
              const auto values = parameter.gradient.span<float>();
              mine.gradient.insert(mine.gradient.end(), values.begin(), values.end());
            }
          optimizer.step();
          mine.losses.push_back(outcome.loss);
          ++step;
        }
        model.set_training(false);
        const auto [input, wanted] = task.batch(1'000'000, 0, 400);
        mine.loss_after = CrossEntropy(model.forward(input), wanted).value();
        mine.skipped = agreement.skipped_steps();
        const std::lock_guard lock(mutex);
        if (comm.rank() == 0) run = std::move(mine);
      },
      {}, 200);
  return run;
}

double norm_of(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(sum);
}

TEST(JoinedBatch, TheFirstGradientAndTheLossesAreThoseOfOneRank) {
  for (const auto& task : kTasks) {
    const auto one = train(task, {12}, 10);
    const double norm = norm_of(one.gradient);
    EXPECT_GT(norm, 0.1) << task.name;
    EXPECT_LT(one.losses.back(), one.losses.front()) << task.name;
    for (const auto& parts :
         std::vector<std::vector<int64_t>>{{6, 6}, {3, 3, 3, 3}, {7, 5}, {0, 1, 3, 8}}) {
      const auto more = train(task, parts, 10);
      ASSERT_EQ(more.gradient.size(), one.gradient.size());
      auto difference = more.gradient;
      for (size_t i = 0; i < difference.size(); ++i) difference[i] -= one.gradient[i];
      const double part = norm_of(difference) / norm;
      EXPECT_LE(part, 1e-5) << task.name << " on " << parts.size() << " ranks";
      double worst = 0;
      for (size_t step = 0; step < 10; ++step)
        worst = std::max(worst, std::abs(more.losses[step] / one.losses[step] - 1));
      EXPECT_LE(worst, 1e-3) << task.name << " on " << parts.size() << " ranks";
      std::printf("%s on %zu ranks: first gradient differs by %.1e of its norm, losses by %.1e\n",
                  task.name, parts.size(), part, worst);
    }
  }
}

TEST(JoinedBatch, SixteenBitsReachTheLossOfThirtyTwoIn200Steps) {
  for (const auto& task : kTasks) {
    const auto wide = train(task, {16, 16}, 200);
    for (const auto dtype : {DataType::bf16, DataType::f16}) {
      const bool is_scaled = dtype == DataType::f16;
      const auto narrow = train(task, {16, 16}, 200, dtype,
                                {.loss_scale = {.first = is_scaled ? 0x1p17 : 1.0, .clean = 50}});
      std::printf("%s: loss after 200 steps %.4f in f32, %.4f in %s, %lld skipped\n", task.name,
                  wide.loss_after, narrow.loss_after, std::string(to_string(dtype)).c_str(),
                  static_cast<long long>(narrow.skipped));
      EXPECT_NEAR(narrow.loss_after, wide.loss_after, 0.02 * wide.loss_after)
          << task.name << " in " << to_string(dtype);
    }
  }
}

}  // namespace
}  // namespace tutti::nn
