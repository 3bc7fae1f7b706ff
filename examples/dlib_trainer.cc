// A layer on dlib's tensors, trained by dlib's solvers (sgd and adam), without dlib's own trainer.
// The lines that end in "// tutti" make it data-parallel, and "was" shows a line that they replace.
// The trainer prints its weights. With 2 ranks they equal those of one rank with the whole batch.

#include <dlib/dnn/solvers.h>
#include <tutti/adapters/distributed.h>  // tutti

#include <cmath>
#include <cstdio>
#include <vector>

namespace {

constexpr long kInputs = 8, kBatch = 64;

struct Sample {
  float x[kInputs], y;
};

// The part of a layer that dlib's solvers use.
struct Linear {
  dlib::resizable_tensor parameters;
  const dlib::tensor& get_layer_params() const { return parameters; }
};

tutti::TensorView view(dlib::tensor& t) {                                     // tutti
  return {t.host(), {static_cast<int64_t>(t.size())}, tutti::DataType::f32};  // tutti
}  // tutti

template <class Solver>
struct Trainer {
  Linear layer{};
  dlib::resizable_tensor gradient{};
  Solver solver{};

  void step() {
    const auto& change = solver(0.02F, layer, gradient);
    for (size_t i = 0; i < change.size(); ++i) layer.parameters.host()[i] += change.host()[i];
  }
  std::vector<tutti::NamedParameter> parameters() {               // tutti
    return {{"linear", view(layer.parameters), view(gradient)}};  // tutti
  }                                                               // tutti
};

template <class Solver>
void train(std::vector<Sample> batch) {
  Trainer<Solver> trainer;
  trainer.layer.parameters.set_size(kInputs);
  trainer.gradient.set_size(kInputs);
  trainer.layer.parameters = 0;
  trainer.gradient = 0;

  auto comm = tutti::Communicator::create();                        // tutti
  auto optimizer = tutti::distributed(*comm, trainer);              // tutti
  const auto part = static_cast<int>(batch.size()) / comm->size();  // tutti
  batch.erase(batch.begin(), batch.begin() + comm->rank() * part);  // tutti
  batch.resize(static_cast<size_t>(part));                          // tutti

  for (int step = 0; step < 30; ++step) {
    trainer.gradient = 0;
    const float* weight = trainer.layer.parameters.host();
    for (const auto& [x, y] : batch) {
      float error = -y;
      for (long i = 0; i < kInputs; ++i) error += weight[i] * x[i];
      for (long i = 0; i < kInputs; ++i)
        trainer.gradient.host()[i] += 2 * error * x[i] / static_cast<float>(batch.size());
    }
    optimizer.step();  // tutti: was trainer.step();
  }
  if (comm->rank() != 0) return;  // tutti
  for (long i = 0; i < kInputs; ++i)
    std::printf("%.9g\n", static_cast<double>(trainer.layer.parameters.host()[i]));
}

}  // namespace

int main() {
  std::vector<Sample> batch(kBatch);
  for (size_t n = 0; n < batch.size(); ++n) {
    batch[n].y = 0;
    for (size_t i = 0; i < kInputs; ++i) {
      batch[n].x[i] = std::sin(static_cast<float>(17 * n + 5 * i * i));
      batch[n].y += batch[n].x[i] * static_cast<float>(i) / kInputs;
    }
  }
  train<dlib::sgd>(batch);
  train<dlib::adam>(batch);
}
