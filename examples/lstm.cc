// Trains an LSTM to predict the next byte of a text, on any number of ranks. The batch of a step is
// the same for any number of ranks, and need not be a multiple of that number.

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <string>

#include "tutti/nn.h"
#include "tutti/tutti.h"

namespace nn = tutti::nn;

namespace {

struct Settings {
  int steps = 100;
  int64_t batch = 16;  // sequences per step, on all ranks together
  int64_t length = 32, width = 64;
  unsigned seed = 1;
  double learning_rate = 0.01;
  std::string text = "/usr/share/common-licenses/GPL-3";  // every Debian system has it
};

void train(const Settings& s) {
  const nn::TextDataset text(s.text, s.length);
  const auto comm = tutti::Communicator::create();
  const int64_t rank = comm->rank(), size = comm->size();
  const int64_t first = s.batch * rank / size, count = s.batch * (rank + 1) / size - first;

  nn::Sequential model(s.seed);
  model.add("bytes", nn::embedding(256, s.width, {.deviation = 0.3}))
      .add("lstm", nn::lstm(s.width, s.width))
      .add("head", nn::linear(s.width, 256));
  nn::Adam adam(model.parameters(), {.learning_rate = s.learning_rate});
  auto optimizer = tutti::distributed(*comm, adam, {.op = tutti::ReduceOp::sum});
  nn::StepAgreement agreement(*comm, {.clip = 1});
  const auto begin = std::chrono::steady_clock::now();
  for (int step = 0; step < s.steps; ++step) {
    const auto [input, next] = text.sequences(s.seed, static_cast<uint32_t>(step), first, count);
    model.zero_grad();
    const nn::CrossEntropy loss(model.forward(input), next);
    model.backward(loss, agreement.divisor());
    agreement.send(loss);
    optimizer.synchronize();
    const auto outcome = agreement.finish(adam.parameters());
    if (outcome.is_skipped)
      optimizer.skip();
    else
      optimizer.step();
    if (rank == 0) std::printf("step %d  loss %.6f  norm %.6g\n", step, outcome.loss, outcome.norm);
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  if (rank == 0)
    std::printf("%.0f bytes/s\n",
                static_cast<double>(s.steps * s.batch * s.length) / taken.count());
}

}  // namespace

int main(int count, char** arguments) {
  Settings s;
  CLI::App app("Trains an LSTM on the bytes of a text on all ranks of the job.");
  app.add_option("--steps", s.steps, "of training");
  app.add_option("--batch", s.batch, "sequences per step, of all ranks together");
  app.add_option("--length", s.length, "bytes of a sequence")->check(CLI::PositiveNumber);
  app.add_option("--width", s.width, "of the hidden values");
  app.add_option("--text", s.text, "file whose bytes are learnt");
  app.add_option("--learning-rate", s.learning_rate, "of Adam");
  app.add_option("--seed", s.seed, "of weights and sequences");
  CLI11_PARSE(app, count, arguments);
  try {
    train(s);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lstm: %s\n", error.what());
    return 1;
  }
  return 0;
}
