// A small network on Eigen's matrices with its own stochastic gradient descent. The lines that end
// in "// tutti" make it data-parallel, and "was" shows a line that they replace. Gradients are
// exchanged while the backward pass goes on. The trainer prints its weights. With 2 ranks they
// equal those of one rank with the whole batch.

#include <tutti/adapters/distributed.h>  // tutti

#include <Eigen/Core>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

namespace {

using Eigen::MatrixXf;

struct Weight {
  std::string name;
  MatrixXf value, gradient, velocity;
  Weight(std::string name, MatrixXf start)
      : name(std::move(name)),
        value(std::move(start)),
        gradient(MatrixXf::Zero(value.rows(), value.cols())),
        velocity(gradient) {}
};

tutti::TensorView view(MatrixXf& m) {                   // tutti
  return {m.data(), {m.size()}, tutti::DataType::f32};  // tutti
}  // tutti

struct Sgd {
  std::vector<Weight*> weights;
  void step() {
    for (auto* w : weights) {
      w->velocity = 0.9F * w->velocity + w->gradient;
      w->value -= 0.05F * w->velocity;
    }
  }
  std::vector<tutti::NamedParameter> parameters() {                                       // tutti
    std::vector<tutti::NamedParameter> all;                                               // tutti
    for (auto* w : weights) all.push_back({w->name, view(w->value), view(w->gradient)});  // tutti
    return all;                                                                           // tutti
  }                                                                                       // tutti
  std::function<void(std::string_view)> ready{};                                          // tutti
  void on_gradient_ready(auto callback) { ready = callback; }                             // tutti
};

// Columns are samples.
MatrixXf waves(Eigen::Index rows, Eigen::Index columns, float step) {
  MatrixXf m(rows, columns);
  for (Eigen::Index c = 0; c < columns; ++c)
    for (Eigen::Index r = 0; r < rows; ++r)
      m(r, c) = std::sin(step * static_cast<float>(1 + r * columns + c));
  return m;
}

}  // namespace

int main() {
  Weight hidden("hidden", waves(24, 6, 0.7F)), output("output", 0.4F * waves(2, 24, 1.3F));
  Sgd sgd{{&hidden, &output}};
  MatrixXf x = waves(6, 64, 0.37F);
  MatrixXf y = x.topRows(2).cwiseProduct(x.bottomRows(2));

  auto comm = tutti::Communicator::create();           // tutti
  auto optimizer = tutti::distributed(*comm, sgd);     // tutti
  const auto part = x.cols() / comm->size();           // tutti
  x = x.middleCols(comm->rank() * part, part).eval();  // tutti
  y = y.middleCols(comm->rank() * part, part).eval();  // tutti

  for (int step = 0; step < 30; ++step) {
    const MatrixXf activation = (hidden.value * x).array().tanh();
    const MatrixXf error = output.value * activation - y;
    const MatrixXf delta = 2.0F / static_cast<float>(x.cols()) * error;
    output.gradient = delta * activation.transpose();
    sgd.ready("output");  // tutti
    const MatrixXf inner =
        ((output.value.transpose() * delta).array() * (1.0F - activation.array().square()));
    hidden.gradient = inner * x.transpose();
    sgd.ready("hidden");  // tutti
    optimizer.step();     // tutti: was sgd.step();
  }
  if (comm->rank() != 0) return 0;  // tutti
  for (const auto* w : sgd.weights)
    for (const float value : w->value.reshaped()) std::printf("%.9g\n", static_cast<double>(value));
}
