// LibTorch models on a GPU that two processes share, with torch's current stream. Without a GPU, or
// with a LibTorch that knows none, every test is skipped with a reason.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/gpu.h"
#include "tests/support/ranks.h"
#include "tutti/adapters/torch/distributed.h"
#include "tutti/adapters/torch/functions.h"
#include "tutti/adapters/torch/sync_batch_norm.h"

namespace {

using torch::Tensor;
using tutti::Communicator;
using tutti::test::run_processes;

const torch::Device kGpu(torch::kCUDA, 0);

class TorchGpu : public testing::Test {
 protected:
  void SetUp() override {
    // Checks in a separate process, because CUDA does not survive the fork into ranks.
    const auto why = tutti::test::why_no_gpu([] {
      if (!torch::cuda::is_available())
        throw tutti::Error(tutti::ErrorCode::unavailable, "no GPU: this LibTorch knows no CUDA");
    });
    if (!why.empty()) GTEST_SKIP() << why;
  }
};

struct Net : torch::nn::Module {
  torch::nn::Conv2d conv{nullptr};
  torch::nn::Linear last{nullptr}, unused{nullptr};

  Net() {
    conv = register_module("conv", torch::nn::Conv2d(2, 4, 3));
    last = register_module("last", torch::nn::Linear(4 * 4 * 4, 3));
    unused = register_module("unused", torch::nn::Linear(3, 3));
    conv->weight.set_data(conv->weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
  }
  Tensor forward(const Tensor& images) { return last(torch::relu(conv(images)).flatten(1)); }
};

std::vector<Tensor> values(const torch::nn::Module& module) {
  std::vector<Tensor> all;
  for (const auto& parameter : module.parameters()) all.push_back(parameter.detach().cpu().clone());
  return all;
}

void expect_equal_on_all_ranks(Communicator& comm, const std::vector<Tensor>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    const auto here = values[i].contiguous();
    const auto bytes = std::as_bytes(
        std::span(static_cast<const char*>(here.data_ptr()), static_cast<size_t>(here.nbytes())));
    const auto all = comm.allgather_bytes("value " + std::to_string(i), bytes);
    for (const auto& one : all) EXPECT_EQ(one, all[0]) << i;
  }
}

// Takes 30 steps of SGD with clipped gradients; each rank takes its part of each batch of 8.
template <class Zero, class Clip, class Step>
void train(Net& net, int rank, int size, Zero&& zero_grad, Clip&& clip, Step&& step) {
  torch::manual_seed(7);
  const auto images = torch::rand({30, 8, 2, 6, 6}), labels = torch::randint(0, 3, {30, 8});
  for (int64_t i = 0; i < 30; ++i) {
    const auto part = [&](const Tensor& all) {
      return all[i].chunk(size)[static_cast<size_t>(rank)].to(kGpu);
    };
    zero_grad();
    torch::cross_entropy_loss(net.forward(part(images)), part(labels)).backward();
    clip();
    step();
  }
}

torch::optim::SGD make_sgd(Net& net) {
  return torch::optim::SGD(net.parameters(),
                           torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
}

TEST_F(TorchGpu, ThirtyStepsOnTwoRanksAreThoseOfOneRankWithTheJoinedBatch) {
  run_processes(2, [](Communicator& comm) {
    torch::manual_seed(1);
    Net alone, net;
    alone.to(kGpu);
    net.to(kGpu);
    if (comm.rank() == 0) {
      const torch::NoGradGuard no_grad;
      for (size_t i = 0; i < net.parameters().size(); ++i)
        net.parameters()[i].copy_(alone.parameters()[i]);
    }
    const auto start = values(alone);
    auto plain = make_sgd(alone);
    train(
        alone, 0, 1, [&] { plain.zero_grad(); },
        [&] { torch::nn::utils::clip_grad_norm_(alone.parameters(), 0.5); }, [&] { plain.step(); });
    auto sgd = make_sgd(net);
    auto optimizer = tutti::torch::distributed(comm, sgd, net);
    train(
        net, comm.rank(), 2, [&] { optimizer.zero_grad(); },
        [&] { EXPECT_GT(optimizer.clip_by_global_norm(0.5), 0); }, [&] { optimizer.step(); });
    const auto got = values(net), expected = values(alone);
    // Compares all layers except the one that no pass reaches: on a GPU its gradients are zeros
    // instead of undefined.
    for (size_t i = 0; i < 4; ++i)
      EXPECT_LT((got[i] - expected[i]).abs().max().item<float>(), 1e-4) << i;
    EXPECT_GT((got[0] - start[0]).abs().max().item<float>(), 1e-2);  // the model has learned
    expect_equal_on_all_ranks(comm, got);
  });
}

TEST_F(TorchGpu, SparseGradientsAreThoseOfTheJoinedBatch) {
  run_processes(2, [](Communicator& comm) {
    torch::nn::Embedding rows(torch::nn::EmbeddingOptions(5, 2).sparse(true));
    rows->to(kGpu);
    torch::optim::SGD sgd(rows->parameters(), 1);
    auto optimizer = tutti::torch::distributed(comm, sgd, *rows);
    const auto before = rows->weight.detach().clone();
    optimizer.zero_grad();
    // Both ranks use row 0, and each also uses another row.
    rows(torch::tensor({0, 1 + comm.rank()}, torch::kLong).to(kGpu)).sum().backward();
    optimizer.step();
    const auto expected = torch::tensor({{1., 1.}, {.5, .5}, {.5, .5}, {0., 0.}, {0., 0.}});
    EXPECT_TRUE(
        torch::allclose((before - rows->weight.detach()).cpu(), expected.to(torch::kFloat)));
  });
}

// The values and gradients of each function must equal those in host memory.
TEST_F(TorchGpu, FunctionsGiveWhatTheyGiveInHostMemory) {
  run_processes(2, [](Communicator& comm) {
    const auto rank = comm.rank();
    using Call = std::function<Tensor(const std::string&, const Tensor&)>;
    const std::vector<std::pair<std::string, Call>> calls = {
        {"allreduce",
         [&](auto& name, auto& in) { return tutti::torch::allreduce(comm, name, in); }},
        {"allgather",
         [&](auto& name, auto& in) { return tutti::torch::allgather(comm, name, in); }},
        {"broadcast",
         [&](auto& name, auto& in) { return tutti::torch::broadcast(comm, name, in, 1); }},
        {"reduce_scatter",
         [&](auto& name, auto& in) { return tutti::torch::reduce_scatter(comm, name, in); }},
        {"alltoall", [&](auto& name, auto& in) {
           const std::vector<int64_t> splits = {1 + rank, 4 - rank};
           return tutti::torch::alltoall(comm, name, in, splits);
         }}};
    for (const auto& [name, call] : calls) {
      const auto input = torch::arange(15, torch::kFloat).reshape({5, 3}) * (1 + rank);
      std::vector<Tensor> results;
      for (const auto& device : {torch::Device(torch::kCPU), kGpu}) {
        auto leaf = input.to(device).clone().requires_grad_();
        const auto output = call(name + device.str(), leaf);
        EXPECT_EQ(output.device(), device) << name;
        (output * output).sum().backward();
        results.push_back(output.detach().cpu());
        results.push_back(leaf.grad().cpu());
      }
      EXPECT_TRUE(torch::equal(results[0], results[2])) << name;
      EXPECT_TRUE(torch::equal(results[1], results[3])) << name << ", its gradient";
    }
  });
}

TEST_F(TorchGpu, SyncBatchNormNormalizesTheBatchOfAllRanks) {
  run_processes(2, [](Communicator& comm) {
    torch::manual_seed(3);
    const auto batch = torch::randn({8, 4, 3, 3});
    tutti::torch::SyncBatchNorm norm(comm, "norm", 4);
    norm->to(kGpu);
    torch::nn::BatchNorm2d alone(4);
    const auto got = norm(batch.chunk(2)[static_cast<size_t>(comm.rank())].to(kGpu)).cpu();
    const auto expected = alone(batch).chunk(2)[static_cast<size_t>(comm.rank())];
    EXPECT_TRUE(torch::allclose(got, expected, 1e-4, 1e-5));
  });
}

}  // namespace
