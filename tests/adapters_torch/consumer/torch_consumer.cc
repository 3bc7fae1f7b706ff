#include <torch/torch.h>
#include <tutti/adapters/torch/distributed.h>
#include <tutti/adapters/torch/process_group.h>

#include <cstdio>

// Two ranks begin with different weights and end with one, as c10d's highest says.
int main() {
  std::shared_ptr<tutti::Communicator> comm = tutti::Communicator::create();
  torch::manual_seed(comm->rank());
  torch::nn::Linear net(1, 1);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto optimizer = tutti::torch::distributed(*comm, sgd, *net);
  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    (net(torch::full({1, 1}, comm->rank() + 1, torch::kFloat)) - 3).pow(2).sum().backward();
    optimizer.step();
  }
  const auto group = c10::make_intrusive<tutti::torch::ProcessGroup>(comm);
  std::vector<torch::Tensor> highest{net->weight.detach().clone()};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MAX;
  group->allreduce(highest, options)->wait();
  if (comm->size() == 2 && torch::equal(highest[0], net->weight)) return 0;
  std::fprintf(stderr, "%d ranks, weights %g and %g\n", comm->size(), net->weight.item<double>(),
               highest[0].item<double>());
  return 1;
}
