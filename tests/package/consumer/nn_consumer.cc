#include <tutti/nn.h>
#include <tutti/tutti.h>

#include <cmath>
#include <cstdio>

namespace nn = tutti::nn;

// Two ranks start with different parameters and end with equal ones that separate two classes.
int main() {
  auto comm = tutti::Communicator::create();
  nn::Sequential model(static_cast<uint64_t>(comm->rank()));
  model.add("fc", nn::linear(1, 2));
  nn::Sgd sgd(model.parameters(), {.learning_rate = 1.0});
  auto optimizer = tutti::distributed(*comm, sgd);
  const tutti::Tensor inputs(tutti::Shape{2, 1}, tutti::DataType::f32);
  const tutti::Tensor labels(tutti::Shape{2}, tutti::DataType::i64);
  inputs.as<float>()[0] = -1;
  inputs.as<float>()[1] = 1;
  labels.as<int64_t>()[1] = 1;
  double loss_value = 0;
  for (int step = 0; step < 20; ++step) {
    model.zero_grad();
    nn::CrossEntropy loss(model.forward(inputs), labels);
    loss_value = loss.value();
    model.backward(loss);
    optimizer.step();
  }
  const float weight = model.parameters()[0].value.as<float>()[0];
  float highest = weight;
  comm->allreduce("highest", std::span(&highest, 1), tutti::ReduceOp::max).wait();
  if (comm->size() == 2 && highest == weight && loss_value < 0.1) return 0;
  std::fprintf(stderr, "%d ranks, loss %g, weights %g and %g\n", comm->size(), loss_value,
               static_cast<double>(weight), static_cast<double>(highest));
  return 1;
}
