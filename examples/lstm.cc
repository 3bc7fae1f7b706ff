// Trains an LSTM to foretell the next byte of a text, on as many ranks as it is started on. The
// batch of a step is the same for any number of ranks, and need not be a multiple of it.

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "tutti/nn.h"
#include "tutti/tutti.h"

namespace nn = tutti::nn;

namespace {

struct Settings {
  int steps = 100;
  int64_t batch = 16;  // sequences of all ranks together
  int64_t length = 32, width = 64;
  unsigned seed = 1;
  double learning_rate = 0.01;
  std::string text = "/usr/share/common-licenses/GPL-3";  // every Debian has it
};

// Sequences of the text and, for each byte, the one behind it.
struct Bytes {
  tutti::Tensor input, next;
};

Bytes batch_of(const Settings& s, const std::vector<std::byte>& text, int64_t first, int64_t count,
               int step) {
  const tutti::Tensor input(tutti::Shape{count, s.length}, tutti::DataType::i64);
  const tutti::Tensor next(input.shape(), tutti::DataType::i64);
  const tutti::RandomKey key{.seed = s.seed,
                             .purpose = tutti::random_purpose("place"),
                             .step = static_cast<uint32_t>(step)};
  for (int64_t row = 0; row < count; ++row) {
    const auto bits = tutti::random_block(key, static_cast<uint64_t>(first + row))[0];
    const size_t place = bits % (text.size() - static_cast<size_t>(s.length));
    for (int64_t i = 0; i < s.length; ++i) {
      const size_t at = place + static_cast<size_t>(i);
      input.as<int64_t>()[row * s.length + i] = static_cast<int64_t>(text[at]);
      next.as<int64_t>()[row * s.length + i] = static_cast<int64_t>(text[at + 1]);
    }
  }
  return {input, next};
}

void train(const Settings& s) {
  const auto text = nn::read_file(s.text);
  if (text.size() <= static_cast<size_t>(s.length))
    throw tutti::Error(tutti::ErrorCode::corrupt_data,
                       s.text + " has " + std::to_string(text.size()) + " bytes, want more than " +
                           std::to_string(s.length) + " for one sequence; give another --text");
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
    const auto [input, next] = batch_of(s, text, first, count, step);
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
