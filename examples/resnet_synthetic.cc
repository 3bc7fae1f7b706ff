// Trains a ResNet-50 (v1.5: He et al. 2016, with the stride in the 3x3 convolutions) on any number
// of ranks, and prints images per second. The images are random numbers, and each step uses the
// same batch. Batch norm uses the global batch of all ranks, so the losses do not depend on the
// number of ranks. With --zero 1, 2 or 3 the ranks divide the optimizer's state, gradients and
// parameters among themselves.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tutti/kernels/counter_random.h"
#include "tutti/nn.h"
#include "tutti/tensor/device_runtime.h"
#include "tutti/tutti.h"

namespace nn = tutti::nn;

namespace {

struct Settings {
  int steps = 10;
  int64_t batch = 8;  // images per step, on all ranks together
  int64_t image = 224;
  int64_t classes = 1000;
  int64_t width = 64;                      // channels of the first stage
  std::vector<int> blocks = {3, 4, 6, 3};  // number of blocks in each stage
  unsigned seed = 1;
  double learning_rate = 0.05;
  int zero = 0;  // stage of ZeRO; 0: every rank has everything
  std::string dtype = "f32";
  bool balance = false;
  std::string device = "cpu";
};

std::unique_ptr<nn::Layer> norm(tutti::Communicator& comm, int64_t channels, double weight = 1) {
  const nn::BatchNormOptions options{.initial_weight = weight};
  if (comm.size() == 1) return nn::batch_norm(channels, options);
  return nn::sync_batch_norm(comm, channels, options);
}

// Makes a block of a 1x1 convolution, a 3x3 one with the stride, and a 1x1 one to four times the
// width. The last norm's weight starts at zero, so the block starts as its shortcut.
std::unique_ptr<nn::Layer> bottleneck(tutti::Communicator& comm, int64_t in, int64_t width,
                                      int64_t stride) {
  const int64_t out = 4 * width;
  auto body = std::make_unique<nn::Chain>();
  body->add("conv1", nn::conv2d(in, width, 1, {.bias = false}))
      .add("norm1", norm(comm, width))
      .add("relu1", nn::relu())
      .add("conv2", nn::conv2d(width, width, 3, {.stride = stride, .padding = 1, .bias = false}))
      .add("norm2", norm(comm, width))
      .add("relu2", nn::relu())
      .add("conv3", nn::conv2d(width, out, 1, {.bias = false}))
      .add("norm3", norm(comm, out, 0));
  std::unique_ptr<nn::Chain> shortcut;
  if (in != out || stride != 1) {
    shortcut = std::make_unique<nn::Chain>();
    shortcut->add("conv", nn::conv2d(in, out, 1, {.stride = stride, .bias = false}))
        .add("norm", norm(comm, out));
  }
  auto block = std::make_unique<nn::Chain>();
  block->add("sum", nn::residual(std::move(body), std::move(shortcut))).add("relu", nn::relu());
  return block;
}

// Makes the model. In stage 3 of ZeRO its layers get their parameters from the gatherer.
nn::Sequential resnet(tutti::Communicator& comm, const Settings& settings,
                      const std::shared_ptr<nn::Gatherer>& gatherer) {
  nn::Sequential model(settings.seed, 1, tutti::device_of(settings.device));
  const auto placed = [&](std::unique_ptr<nn::Layer> layer) {
    return settings.zero == 3 ? nn::gathered(std::move(layer), gatherer) : std::move(layer);
  };
  if (settings.dtype != "f32")
    model.add("narrow",
              nn::cast_to(settings.dtype == "bf16" ? tutti::DataType::bf16 : tutti::DataType::f16));
  model
      .add("conv",
           placed(nn::conv2d(3, settings.width, 7, {.stride = 2, .padding = 3, .bias = false})))
      .add("norm", placed(norm(comm, settings.width)))
      .add("relu", nn::relu())
      .add("pool", nn::max_pool2d(3, 2, 1));
  int64_t in = settings.width;
  for (size_t stage = 0; stage < settings.blocks.size(); ++stage)
    for (int block = 0; block < settings.blocks[stage]; ++block) {
      const int64_t width = settings.width << stage;
      const auto name = "stage" + std::to_string(stage + 1) + ".block" + std::to_string(block + 1);
      model.add(name, placed(bottleneck(comm, in, width, stage > 0 && block == 0 ? 2 : 1)));
      in = 4 * width;
    }
  model.add("mean", nn::global_average_pool())
      .add("fc", placed(nn::linear(in, settings.classes, {.deviation = 0.01})));
  return model;
}

// Returns this rank's rows of the global batch, which is the same for any number of ranks.
nn::Batch batch_of(const Settings& settings, int64_t first, int64_t count) {
  const tutti::Tensor images(tutti::Shape{count, 3, settings.image, settings.image},
                             tutti::DataType::f32);
  const tutti::Tensor labels(tutti::Shape{count}, tutti::DataType::i64);
  const auto key = [&](const char* purpose) {
    return tutti::RandomKey{.seed = settings.seed, .purpose = tutti::random_purpose(purpose)};
  };
  const auto row = static_cast<uint64_t>(images.shape().row_count());
  tutti::fill_random_normals(key("images"), static_cast<uint64_t>(first) * row,
                             images.span<float>());
  for (int64_t i = 0; i < count; ++i)
    labels.as<int64_t>()[i] =
        tutti::random_block(key("labels"), static_cast<uint64_t>(first + i))[0] % settings.classes;
  return {images, labels};
}

void train(const Settings& settings) {
  // This comes before the ranks meet, so that ranks that share a GPU detect it.
  tutti::device_runtime(tutti::device_of(settings.device).kind);
  const auto comm = tutti::Communicator::create();
  const int64_t rank = comm->rank(), size = comm->size();

  const auto gatherer = std::make_shared<nn::Gatherer>();
  auto model = resnet(*comm, settings, gatherer);
  nn::StepAgreement agreement(
      *comm, {.loss_scale = {.first = settings.dtype == "f16" ? 1024.0 : 1.0},
              .shares = {.samples = settings.batch, .follow_speed = settings.balance}});
  if (rank == 0)
    std::printf(
        "ResNet, %.4f million parameters in %zu tensors, %s, %lld rank%s (%s), batch %lld\n",
        static_cast<double>(model.parameter_count()) * 1e-6, model.parameters().size(),
        settings.dtype.c_str(), static_cast<long long>(size), size == 1 ? "" : "s",
        comm->backend().c_str(), static_cast<long long>(settings.batch));

  nn::Batch batch;
  tutti::StepShare share;
  nn::StepMeter meter(*comm);
  // `gradients` returns the gradients that the inner optimizer uses.
  const auto run = [&](auto& optimizer, const auto& zero_grad, const auto& gradients) {
    for (int step = 0; step < settings.steps; ++step) {
      comm->barrier_blocking();
      const auto held = std::exchange(share, agreement.begin());
      if (step == 0 || share.first != held.first || share.count != held.count) {
        batch = batch_of(settings, share.first, share.count);
        batch.images = model.to_device(batch.images);
      }
      meter.begin();
      zero_grad();
      const nn::CrossEntropy loss(model.forward(batch.images), batch.labels);
      model.backward(loss, agreement.divisor());
      agreement.send(loss);
      optimizer.synchronize();
      const auto outcome = agreement.finish(gradients());
      if (outcome.is_skipped)
        optimizer.skip();
      else
        optimizer.step();
      const auto line = meter.end(step, outcome);
      if (rank == 0) std::puts(line.c_str());
    }
  };
  const nn::SgdOptions options{.learning_rate = settings.learning_rate, .momentum = 0.9};
  if (settings.zero == 0) {
    nn::Sgd sgd(model.parameters(), options);
    auto optimizer = tutti::distributed(*comm, sgd, {.op = tutti::ReduceOp::sum});
    run(
        optimizer, [&] { model.zero_grad(); }, [&] { return sgd.parameters(); });
  } else {
    nn::ShardedOptimizer<nn::Sgd> optimizer(*comm, model.parameters(), options,
                                            {.stage = settings.zero, .op = tutti::ReduceOp::sum});
    optimizer.serve(gatherer);
    run(
        optimizer, [&] { optimizer.zero_grad(); }, [&] { return optimizer.gradients(); });
    if (rank == 0) std::puts(optimizer.describe_memory().c_str());
  }
  if (rank == 0 && settings.steps > 1) std::puts(meter.rate(settings.batch, "images").c_str());
}

}  // namespace

int main(int count, char** arguments) {
  Settings settings;
  CLI::App app("Trains a ResNet-50 on random images on all ranks of the job.");
  app.add_option("--steps", settings.steps, "of training");
  app.add_option("--batch", settings.batch, "images per step, of all ranks together");
  app.add_option("--image", settings.image, "height and width of the images")
      ->check(CLI::Range(32, 4096));
  app.add_option("--classes", settings.classes, "that the labels name");
  app.add_option("--width", settings.width, "channels of the first stage; 64: ResNet-50");
  app.add_option("--blocks", settings.blocks, "of each stage; 3 4 6 3: ResNet-50");
  app.add_option("--learning-rate", settings.learning_rate, "of SGD with momentum 0.9");
  app.add_option("--zero", settings.zero, "stage of ZeRO: what ranks divide; 0: nothing")
      ->check(CLI::Range(0, 3));
  app.add_option("--seed", settings.seed, "of weights, images and labels");
  app.add_option("--dtype", settings.dtype, "of activations; parameters are f32")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  app.add_flag("--balance", settings.balance, "deal images by the speed of each rank");
  app.add_option("--device", settings.device, "where layers are computed: cpu, cuda, cuda:1");
  CLI11_PARSE(app, count, arguments);
  try {
    train(settings);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "resnet_synthetic: %s\n", error.what());
    return 1;
  }
  return 0;
}
