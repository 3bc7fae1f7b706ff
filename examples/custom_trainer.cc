// A trainer written by hand with its own structs, made for one rank. The ten lines that end in "//
// tutti" make it data-parallel: each rank takes its part of every batch.

#include <tutti/tutti.h>  // tutti

#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

namespace {

struct Parameter {
  std::string name;
  std::vector<float> value, gradient, velocity;
};

// output = weight * input + bias
struct Layer {
  size_t inputs, outputs;
  Parameter weight, bias;

  Layer(std::string name, size_t inputs, size_t outputs, std::mt19937& random)
      : inputs(inputs), outputs(outputs) {
    const auto bound = 1 / std::sqrt(static_cast<float>(inputs));
    std::uniform_real_distribution<float> uniform(-bound, bound);
    weight = {name + ".weight", std::vector<float>(inputs * outputs), {}, {}};
    bias = {name + ".bias", std::vector<float>(outputs), {}, {}};
    for (auto& w : weight.value) w = uniform(random);
  }

  std::vector<float> forward(const std::vector<float>& x) const {
    std::vector<float> y = bias.value;
    for (size_t o = 0; o < outputs; ++o)
      for (size_t i = 0; i < inputs; ++i) y[o] += weight.value[o * inputs + i] * x[i];
    return y;
  }

  // Adds to the gradients; returns the gradient of the input.
  std::vector<float> backward(const std::vector<float>& x, const std::vector<float>& dy) {
    std::vector<float> dx(inputs);
    for (size_t o = 0; o < outputs; ++o) {
      bias.gradient[o] += dy[o];
      for (size_t i = 0; i < inputs; ++i) {
        weight.gradient[o * inputs + i] += dy[o] * x[i];
        dx[i] += dy[o] * weight.value[o * inputs + i];
      }
    }
    return dx;
  }
};

struct Sample {
  std::vector<float> x;
  float y;
};

// Samples of a smooth function of three numbers, the same on every rank.
std::vector<Sample> make_samples(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<Sample> samples;
  for (size_t n = 0; n < count; ++n) {
    const float a = uniform(random), b = uniform(random), c = uniform(random);
    samples.push_back({{a, b, c}, std::sin(3 * a) + b * c});
  }
  return samples;
}

float predict(const Layer& hidden, const Layer& output, const Sample& sample,
              std::vector<float>& activation) {
  activation = hidden.forward(sample.x);
  for (auto& a : activation) a = std::tanh(a);
  return output.forward(activation)[0];
}

}  // namespace

int main() try {
  auto comm = tutti::Communicator::create();  // tutti

  std::mt19937 random(7);
  Layer hidden("hidden", 3, 32, random), output("output", 32, 1, random);
  const std::vector<Parameter*> parameters = {&hidden.weight, &hidden.bias, &output.weight,
                                              &output.bias};
  for (auto* p : parameters) comm->broadcast_blocking(p->name, p->value);  // tutti

  const auto train = make_samples(2048, 1), test = make_samples(512, 2);
  const size_t batch = 64;
  const float learning_rate = 0.05F, momentum = 0.9F;
  std::vector<float> activation;
  for (int epoch = 1; epoch <= 20; ++epoch) {
    float loss = 0;
    for (size_t first = 0; first < train.size(); first += batch) {
      for (auto* p : parameters) p->gradient.assign(p->value.size(), 0);
      for (size_t n = first + comm->rank(); n < first + batch; n += comm->size()) {  // tutti
        const float error = predict(hidden, output, train[n], activation) - train[n].y;
        loss += error * error;
        auto delta = output.backward(activation, {2 * error / batch});
        for (size_t i = 0; i < delta.size(); ++i) delta[i] *= 1 - activation[i] * activation[i];
        hidden.backward(train[n].x, delta);
      }
      std::vector<tutti::Work> works;  // tutti
      for (auto* p : parameters)
        works.push_back(comm->allreduce(p->name, p->gradient, tutti::ReduceOp::sum));  // tutti
      for (auto& work : works) work.wait();                                            // tutti
      for (auto* p : parameters) {
        p->velocity.resize(p->value.size());
        for (size_t i = 0; i < p->value.size(); ++i) {
          p->velocity[i] = momentum * p->velocity[i] + p->gradient[i];
          p->value[i] -= learning_rate * p->velocity[i];
        }
      }
    }
    comm->allreduce_blocking("loss", std::span(&loss, 1), tutti::ReduceOp::sum);  // tutti
    if (comm->rank() == 0)                                                        // tutti
      std::printf("epoch %2d  training error %.4f\n", epoch,
                  static_cast<double>(loss) / static_cast<double>(train.size()));
  }

  float error = 0;
  for (const auto& sample : test)
    error += std::pow(predict(hidden, output, sample, activation) - sample.y, 2.0F);
  error /= static_cast<float>(test.size());
  if (comm->rank() == 0)  // tutti
    std::printf("test error %.4f\n", static_cast<double>(error));
  return error < 0.02F ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "custom_trainer: %s\n", error.what());
  return 1;
}
