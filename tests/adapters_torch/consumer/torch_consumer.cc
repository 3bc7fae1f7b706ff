#include <torch/torch.h>
#include <tutti/adapters/torch/distributed.h>
#include <tutti/adapters/torch/functions.h>

#include <cstdio>

// Two ranks start with different weights and end with the same.
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
  const auto all = tutti::torch::allgather(*comm, "weights", net->weight.detach());
  if (comm->size() == 2 && torch::equal(all[0], all[1])) return 0;
  std::fprintf(stderr, "%d ranks, weights %g of %g and %g\n", comm->size(),
               net->weight.item<double>(), all[0].item<double>(), all[-1].item<double>());
  return 1;
}
