// A trainer that keeps its network as a struct of arrays: one such struct for the values, one for
// the gradients, one for the momenta. The lines that end in "// tutti" make it data-parallel, and
// "was" shows a line that they replace. The trainer prints its weights. With 2 ranks they equal
// those of one rank with the whole batch.

#include <tutti/adapters/distributed.h>  // tutti

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

namespace {

constexpr size_t kInputs = 3, kHidden = 16, kBatch = 64;

struct Arrays {
  std::vector<double> hidden_weight, hidden_bias, output_weight, output_bias;

  Arrays()
      : hidden_weight(kHidden * kInputs),
        hidden_bias(kHidden),
        output_weight(kHidden),
        output_bias(1) {}
  // Calls `action` with the same array of all three structs, for each array.
  template <class Action>
  static void each(Arrays& a, Arrays& b, Arrays& c, Action action) {
    action(a.hidden_weight, b.hidden_weight, c.hidden_weight);
    action(a.hidden_bias, b.hidden_bias, c.hidden_bias);
    action(a.output_weight, b.output_weight, c.output_weight);
    action(a.output_bias, b.output_bias, c.output_bias);
  }
};

struct Momentum {
  Arrays& value;
  Arrays& gradient;
  Arrays velocity{};

  void step() {
    Arrays::each(value, gradient, velocity, [](auto& v, auto& g, auto& m) {
      for (size_t i = 0; i < v.size(); ++i) v[i] -= m[i] = 0.9 * m[i] + 0.1 * g[i];
    });
  }
  std::vector<tutti::NamedParameter> parameters() const {                    // tutti
    return {{"hidden.weight", value.hidden_weight, gradient.hidden_weight},  // tutti
            {"hidden.bias", value.hidden_bias, gradient.hidden_bias},        // tutti
            {"output.weight", value.output_weight, gradient.output_weight},  // tutti
            {"output.bias", value.output_bias, gradient.output_bias}};       // tutti
  }                                                                          // tutti
};

struct Sample {
  double x[kInputs], y;
};

std::vector<Sample> make_batch() {
  std::vector<Sample> batch(kBatch);
  for (size_t n = 0; n < kBatch; ++n) {
    for (size_t i = 0; i < kInputs; ++i)
      batch[n].x[i] = std::sin(static_cast<double>(12 * n + 7 * i));
    batch[n].y = batch[n].x[0] * batch[n].x[1] + 0.5 * batch[n].x[2];
  }
  return batch;
}

// Computes the gradient of the mean squared error over the batch, and returns the error.
double backward(const Arrays& value, const std::vector<Sample>& batch, Arrays& gradient) {
  for (auto* array : {&gradient.hidden_weight, &gradient.hidden_bias, &gradient.output_weight,
                      &gradient.output_bias})
    std::fill(array->begin(), array->end(), 0);
  const auto share = 1.0 / static_cast<double>(batch.size());
  double loss = 0, hidden[kHidden];
  for (const auto& [x, y] : batch) {
    double error = value.output_bias[0] - y;
    for (size_t h = 0; h < kHidden; ++h) {
      double sum = value.hidden_bias[h];
      for (size_t i = 0; i < kInputs; ++i) sum += value.hidden_weight[h * kInputs + i] * x[i];
      hidden[h] = std::tanh(sum);
      error += value.output_weight[h] * hidden[h];
    }
    loss += error * error * share;
    const double delta = 2 * error * share;
    gradient.output_bias[0] += delta;
    for (size_t h = 0; h < kHidden; ++h) {
      gradient.output_weight[h] += delta * hidden[h];
      const double inner = delta * value.output_weight[h] * (1 - hidden[h] * hidden[h]);
      gradient.hidden_bias[h] += inner;
      for (size_t i = 0; i < kInputs; ++i) gradient.hidden_weight[h * kInputs + i] += inner * x[i];
    }
  }
  return loss;
}

}  // namespace

int main() {
  Arrays value, gradient;
  for (size_t i = 0; i < value.hidden_weight.size(); ++i)
    value.hidden_weight[i] = std::sin(static_cast<double>(i));
  for (size_t h = 0; h < kHidden; ++h)
    value.output_weight[h] = 0.3 * std::cos(2.0 * static_cast<double>(h));
  auto batch = make_batch();
  Momentum momentum{value, gradient};

  auto comm = tutti::Communicator::create();                        // tutti
  auto optimizer = tutti::distributed(*comm, momentum);             // tutti
  const auto part = static_cast<int>(batch.size()) / comm->size();  // tutti
  batch.erase(batch.begin(), batch.begin() + comm->rank() * part);  // tutti
  batch.resize(static_cast<size_t>(part));                          // tutti

  for (int step = 0; step < 30; ++step) {
    backward(value, batch, gradient);
    optimizer.step();  // tutti: was momentum.step();
  }
  if (comm->rank() != 0) return 0;  // tutti
  for (const auto* array : {&value.hidden_weight, &value.hidden_bias, &value.output_weight})
    for (const double weight : *array) std::printf("%.17g\n", weight);
}
