#include <torch/torch.h>
#include <tutti/adapters/torch/distributed.h>

#include <cstdio>

// Two ranks begin with different weights and end with one.
int main() {
  auto comm = tutti::Communicator::create();
  torch::manual_seed(comm->rank());
  torch::nn::Linear net(1, 1);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto optimizer = tutti::torch::distributed(*comm, sgd, *net);
  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    (net(torch::full({1, 1}, comm->rank() + 1, torch::kFloat)) - 3).pow(2).sum().backward();
    optimizer.step();
  }
  const float weight = net->weight.item<float>();
  const float highest = comm->allreduce_blocking("highest", weight, tutti::ReduceOp::max);
  if (comm->size() == 2 && highest == weight) return 0;
  std::fprintf(stderr, "%d ranks, weights %g and %g\n", comm->size(), static_cast<double>(weight),
               static_cast<double>(highest));
  return 1;
}
