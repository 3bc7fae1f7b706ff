// Trains a GPT-2 (Radford et al. 2019) on the bytes of a text, on any number of ranks, and prints
// tokens per second. The model is small, or has GPT-2's own shape with --model 124M. The global
// batch and its dropout are the same for any number of ranks. With --zero 1, 2 or 3 the ranks
// divide the optimizer's state, gradients and parameters among themselves. --checkpoints saves all
// of it regularly.

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "tutti/adapters/checkpoint/checkpoint_folder.h"
#include "tutti/nn.h"
#include "tutti/tensor/device_runtime.h"
#include "tutti/tutti.h"

namespace nn = tutti::nn;

namespace {

struct Settings {
  int steps = 20;
  int64_t batch = 8;  // sequences per step, on all ranks together
  std::string model = "small";
  int64_t vocabulary = 256, length = 64, width = 64, heads = 4, layers = 2;
  unsigned seed = 1;
  double learning_rate = 3e-3;
  std::string optimizer = "adamw", dtype = "f32", device = "cpu";
  int zero = 0;  // stage of ZeRO; 0: every rank has everything
  double dropout = 0;
  bool balance = false;
  std::string checkpoints;  // folder; empty: nothing is saved
  int save_every = 10;
  std::string text = "/usr/share/common-licenses/GPL-3";  // every Debian system has it
};

std::unique_ptr<nn::Layer> attention_block(const Settings& s, double deviation) {
  auto body = std::make_unique<nn::Chain>();
  body->add("norm", nn::layer_norm(s.width))
      .add("qkv", nn::linear(s.width, 3 * s.width, {.deviation = 0.02}))
      .add("attention", nn::attention({.heads = s.heads, .causal = true}))
      .add("out", nn::linear(s.width, s.width, {.deviation = deviation}))
      .add("dropout", nn::dropout(s.dropout));
  return nn::residual(std::move(body));
}

std::unique_ptr<nn::Layer> feed_forward_block(const Settings& s, double deviation) {
  auto body = std::make_unique<nn::Chain>();
  body->add("norm", nn::layer_norm(s.width))
      .add("up", nn::linear(s.width, 4 * s.width, {.deviation = 0.02}))
      .add("gelu", nn::gelu())
      .add("down", nn::linear(4 * s.width, s.width, {.deviation = deviation}))
      .add("dropout", nn::dropout(s.dropout));
  return nn::residual(std::move(body));
}

// Makes the model. In stage 3 of ZeRO its layers get their parameters from the gatherer.
nn::Sequential gpt2(const Settings& s, const std::shared_ptr<nn::Gatherer>& gatherer) {
  nn::Sequential model(s.seed, 1, tutti::device_of(s.device));
  const auto placed = [&](std::unique_ptr<nn::Layer> layer) {
    return s.zero == 3 ? nn::gathered(std::move(layer), gatherer) : std::move(layer);
  };
  auto tokens = nn::embedding(s.vocabulary, s.width, {.positions = s.length});
  auto head = nn::tied_linear(*tokens);
  model.add("tokens", placed(std::move(tokens)));
  if (s.dtype != "f32")
    model.add("narrow",
              nn::cast_to(s.dtype == "bf16" ? tutti::DataType::bf16 : tutti::DataType::f16));
  model.add("dropout", nn::dropout(s.dropout));
  const double deviation = 0.02 / std::sqrt(2.0 * static_cast<double>(s.layers));
  for (int64_t i = 0; i < s.layers; ++i)
    model.add("attention" + std::to_string(i), placed(attention_block(s, deviation)))
        .add("feed_forward" + std::to_string(i), placed(feed_forward_block(s, deviation)));
  model.add("norm", placed(nn::layer_norm(s.width))).add("head", placed(std::move(head)));
  return model;
}

// Trains with the optimizer O, which is AdamW or SGD. Without ZeRO every rank has all of its state.
template <class O, class Options>
void train_with(const Settings& s, const Options& options) {
  const nn::TextDataset text(s.text, s.length);
  // This comes before the ranks meet, so that ranks that share a GPU detect it.
  tutti::device_runtime(tutti::device_of(s.device).kind);
  const auto comm = tutti::Communicator::create();
  const int64_t rank = comm->rank(), size = comm->size();
  const auto gatherer = std::make_shared<nn::Gatherer>();
  auto model = gpt2(s, gatherer);
  nn::StepAgreement agreement(*comm, {.clip = 1,
                                      .loss_scale = {.first = s.dtype == "f16" ? 1024.0 : 1.0},
                                      .shares = {.samples = s.batch, .follow_speed = s.balance}});
  if (rank == 0)
    std::printf("GPT-2, %.3f million parameters, %s, %lld rank%s (%s), batch %lld x %lld\n",
                static_cast<double>(model.parameter_count()) * 1e-6, s.dtype.c_str(),
                static_cast<long long>(size), size == 1 ? "" : "s", comm->backend().c_str(),
                static_cast<long long>(s.batch), static_cast<long long>(s.length));

  const nn::CosineSchedule rate{
      .base = s.learning_rate, .total = s.steps, .least = s.learning_rate / 10, .warmup = 5};
  std::optional<tutti::CheckpointFolder> checkpoints;
  if (!s.checkpoints.empty()) checkpoints.emplace(*comm, s.checkpoints);
  nn::StepMeter meter(*comm);
  // `optimizer` is the distributed one, and `own` is the optimizer in it. `gradients` returns the
  // gradients that `own` uses.
  const auto run = [&](auto& optimizer, O& own, const auto& zero_grad, const auto& gradients) {
    const nn::TrainingState training(*comm, model, optimizer, agreement);
    for (int step = 0; step < s.steps; ++step) {
      const auto [first, count] = agreement.begin();
      const auto [input, next] = text.sequences(s.seed, static_cast<uint32_t>(step), first, count);
      meter.begin();
      model.set_step(static_cast<uint32_t>(step), first);
      own.set_learning_rate(rate(step));
      zero_grad();
      const nn::CrossEntropy loss(model.forward(input), next);
      model.backward(loss, agreement.divisor());
      agreement.send(loss);
      optimizer.synchronize();
      const auto outcome = agreement.finish(gradients());
      if (outcome.is_skipped)
        optimizer.skip();
      else
        optimizer.step();
      if (checkpoints && (step + 1) % s.save_every == 0)
        training.save_in_background(*checkpoints, step + 1);
      const auto line = meter.end(step, outcome);
      if (rank == 0) std::puts(line.c_str());
    }
  };
  if (s.zero == 0) {
    O own(model.parameters(), options);
    auto optimizer = tutti::distributed(*comm, own, {.op = tutti::ReduceOp::sum});
    run(
        optimizer, own, [&] { model.zero_grad(); }, [&] { return own.parameters(); });
  } else {
    nn::ShardedOptimizer<O> optimizer(*comm, model.parameters(), options,
                                      {.stage = s.zero, .op = tutti::ReduceOp::sum});
    optimizer.serve(gatherer);
    run(
        optimizer, optimizer.optimizer(), [&] { optimizer.zero_grad(); },
        [&] { return optimizer.gradients(); });
    if (rank == 0) std::puts(optimizer.describe_memory().c_str());
  }
  if (checkpoints) checkpoints->wait();
  if (rank == 0 && checkpoints && s.steps > 1 && checkpoints->statistics().saves > 0) {
    const auto saved = checkpoints->statistics();
    const double each = saved.held_seconds / static_cast<double>(saved.saves);
    std::printf("%lld saves, each held its step up by %.2f ms, %.2f %% of a step\n",
                static_cast<long long>(saved.saves), each * 1e3,
                100 * each / meter.seconds_per_step());
  }
  if (rank == 0 && s.steps > 1) std::puts(meter.rate(s.batch * s.length, "tokens").c_str());
}

void train(Settings s) {
  if (s.model == "124M") {
    s.vocabulary = 50304;  // 50,257 tokens, padded with unused ones
    if (s.length == Settings().length) s.length = 1024;
    s.width = 768;
    s.heads = s.layers = 12;
  }
  if (s.optimizer == "sgd")
    train_with<nn::Sgd>(s, nn::SgdOptions{.learning_rate = s.learning_rate, .momentum = 0.9});
  else
    train_with<nn::AdamW>(s,
                          nn::AdamOptions{.learning_rate = s.learning_rate, .weight_decay = 0.1});
}

}  // namespace

int main(int count, char** arguments) {
  Settings s;
  CLI::App app("Trains a GPT-2 on the bytes of a text on all ranks of the job.");
  app.add_option("--steps", s.steps, "of training");
  app.add_option("--batch", s.batch, "sequences per step, of all ranks together");
  app.add_option("--model", s.model, "its shape")->check(CLI::IsMember({"small", "124M"}));
  app.add_option("--text", s.text, "file whose bytes are the tokens");
  app.add_option("--learning-rate", s.learning_rate, "highest of the schedule");
  app.add_option("--optimizer", s.optimizer, "SGD has momentum 0.9")
      ->check(CLI::IsMember({"adamw", "sgd"}));
  app.add_option("--zero", s.zero, "stage of ZeRO: what ranks divide; 0: nothing")
      ->check(CLI::Range(0, 3));
  app.add_option("--checkpoints", s.checkpoints, "folder to save in");
  app.add_option("--save-every", s.save_every, "steps")->check(CLI::PositiveNumber);
  app.add_option("--dropout", s.dropout, "share of activations that are left out");
  app.add_option("--seed", s.seed, "of weights, sequences and dropout");
  app.add_option("--dtype", s.dtype, "of activations; parameters are f32")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  app.add_option("--length", s.length, "bytes of a sequence (124M: 1024)");
  app.add_flag("--balance", s.balance, "deal sequences by the speed of each rank");
  app.add_option("--device", s.device, "where layers are computed: cpu, cuda, cuda:1");
  CLI11_PARSE(app, count, arguments);
  try {
    train(s);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpt2: %s\n", error.what());
    return 1;
  }
  return 0;
}
