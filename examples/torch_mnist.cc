// Trains a LeNet-style network on MNIST digits with LibTorch, on any number of ranks:
//
//     tutti-run -np 2 torch_mnist [epochs]
//
// Apart from the communicator, one line makes the optimizer distributed. The global batch is the
// same for any number of ranks.

#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>

#include "tutti/adapters/torch/distributed.h"
#include "tutti/nn.h"
#include "tutti/tutti.h"

namespace {

constexpr int64_t kBatch = 64;  // images per step, on all ranks together

struct Digits {
  torch::Tensor images, labels;
};

Digits read_digits(const std::string& folder, const std::string& part) {
  const auto data = tutti::nn::read_mnist(folder + "/" + part + "-images-idx3-ubyte.gz",
                                          folder + "/" + part + "-labels-idx1-ubyte.gz");
  const auto images = torch::from_blob(data.images.data(), {data.count(), 1, 28, 28}, torch::kByte);
  const auto labels = torch::from_blob(data.labels.data(), {data.count()}, torch::kByte);
  return {(images.to(torch::kFloat) / 255 - 0.1307) / 0.3081, labels.to(torch::kLong)};
}

torch::nn::Sequential lenet() {
  using namespace torch::nn;
  return Sequential(Conv2d(Conv2dOptions(1, 12, 5).padding(2)), ReLU(), MaxPool2d(2),
                    Conv2d(12, 32, 5), ReLU(), MaxPool2d(2), Flatten(), Linear(800, 120), ReLU(),
                    Linear(120, 84), ReLU(), Linear(84, 10));
}

// Returns the share of right answers in percent. Each rank tests its part.
double accuracy(tutti::Communicator& comm, torch::nn::Sequential& model, const Digits& test) {
  const torch::NoGradGuard no_grad;
  const auto mine = torch::arange(comm.rank(), test.labels.size(0), comm.size());
  const auto answers = model->forward(test.images.index_select(0, mine)).argmax(1);
  const auto right = (answers == test.labels.index_select(0, mine)).sum().item<int64_t>();
  return 100.0 *
         static_cast<double>(
             comm.allreduce_blocking("right answers", right, tutti::ReduceOp::sum)) /
         static_cast<double>(test.labels.size(0));
}

bool replicas_are_equal(tutti::Communicator& comm, const torch::nn::Sequential& model) {
  int differing = 0;
  for (const auto& parameter : model->parameters()) {
    const auto of_rank_0 = parameter.detach().clone();
    comm.broadcast_blocking("replica",
                            tutti::TensorView(of_rank_0.data_ptr(), tutti::Shape{of_rank_0.numel()},
                                              tutti::DataType::f32));
    differing += torch::equal(of_rank_0, parameter) ? 0 : 1;
  }
  return comm.allreduce_blocking("differing", differing, tutti::ReduceOp::sum) == 0;
}

int train(const std::string& data, int epochs) {
  torch::set_num_threads(1);
  const auto training = read_digits(data, "train");
  const auto test = read_digits(data, "t10k");
  const int64_t steps = training.labels.size(0) / kBatch;

  const auto comm = tutti::Communicator::create();
  auto model = lenet();
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  auto optimizer = tutti::torch::distributed(*comm, sgd, *model);
  double percent = 0;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    torch::manual_seed(epoch);  // the same order on all ranks
    const auto order = torch::randperm(training.labels.size(0));
    for (int64_t step = 0; step < steps; ++step) {
      const auto batch =
          order.slice(0, step * kBatch + comm->rank(), (step + 1) * kBatch, comm->size());
      const double done =
          static_cast<double>(epoch * steps + step) / static_cast<double>(epochs * steps);
      sgd.param_groups()[0].options().set_lr(0.05 * (1 - done));
      optimizer.zero_grad();
      const auto answers = model->forward(training.images.index_select(0, batch));
      torch::cross_entropy_loss(answers, training.labels.index_select(0, batch)).backward();
      optimizer.step();
    }
    percent = accuracy(*comm, model, test);
    if (comm->rank() == 0)
      std::printf("epoch %d: %.2f %% of the test digits are right\n", epoch + 1, percent);
  }
  const bool equal = replicas_are_equal(*comm, model);
  if (comm->rank() == 0) std::printf("replicas %s\n", equal ? "are equal to the bit" : "DIFFER");
  return equal && percent >= 97 ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    return train(std::filesystem::path(arguments[0]).parent_path() / "data" / "mnist",
                 count > 1 ? std::atoi(arguments[1]) : 6);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "torch_mnist: %s\n", error.what());
    return 1;
  }
}
