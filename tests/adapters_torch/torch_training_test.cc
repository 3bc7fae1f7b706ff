// Training of LibTorch models on several ranks: it gives the same as on one rank, and equal bits on
// all ranks.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <span>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/support/ranks.h"
#include "tutti/adapters/exchange/policy.h"
#include "tutti/adapters/torch/distributed.h"

namespace {

using torch::Tensor;
using tutti::Communicator;
using tutti::test::run_threads;

// Makes an f32 tensor, whatever the type of `value`.
Tensor filled(at::IntArrayRef shape, double value) {
  return torch::full(shape, value, torch::kFloat);
}

// A convolution in channels_last order, a branch that may be left out, and a frozen layer.
struct Net : torch::nn::Module {
  torch::nn::Conv2d conv{nullptr};
  torch::nn::Linear last{nullptr}, branch{nullptr}, frozen{nullptr};

  Net() {
    conv = register_module("conv", torch::nn::Conv2d(2, 4, 3));
    last = register_module("last", torch::nn::Linear(4 * 4 * 4, 3));
    branch = register_module("branch", torch::nn::Linear(3, 3));
    frozen = register_module("frozen", torch::nn::Linear(3, 3));
    conv->weight.set_data(conv->weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
    for (auto& parameter : frozen->parameters()) parameter.requires_grad_(false);
  }
  Tensor forward(const Tensor& images, bool with_branch = false) {
    auto x = last(torch::relu(conv(images)).flatten(1));
    return frozen(with_branch ? branch(x) : x);
  }
};

std::vector<Tensor> values(const torch::nn::Module& module) {
  std::vector<Tensor> all;
  for (const auto& parameter : module.parameters()) all.push_back(parameter.detach().clone());
  return all;
}

void set_values(torch::nn::Module& module, const std::vector<Tensor>& values) {
  const torch::NoGradGuard no_grad;
  auto parameters = module.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i].copy_(values[i]);
}

void fill(torch::nn::Module& module, double value) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : module.parameters()) parameter.fill_(value);
}

// LibTorch 1.13 uses the text of a parameter's address as the key of its state; later versions use
// the address.
template <class States>
torch::optim::OptimizerParamState& state_of(States& states, const Tensor& parameter) {
  if constexpr (std::is_pointer_v<typename States::key_type>) {
    return *states.at(parameter.unsafeGetTensorImpl());
  } else {
    std::ostringstream text;
    text << parameter.unsafeGetTensorImpl();
    return *states.at(text.str());
  }
}

// Expects the same bits on every rank.
void expect_equal_on_all_ranks(Communicator& comm, const std::vector<Tensor>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    auto here = values[i].contiguous();
    const std::string name = "value " + std::to_string(i);
    const auto bytes = std::as_bytes(
        std::span(static_cast<const char*>(here.data_ptr()), static_cast<size_t>(here.nbytes())));
    const auto all = comm.allgather_bytes(name, bytes);
    for (const auto& one : all) EXPECT_EQ(one, all[0]) << name;
  }
}

struct Digits {
  Tensor images = torch::rand({30, 8, 2, 6, 6});
  Tensor labels = torch::randint(0, 3, {30, 8});
};

// Takes 30 steps; rank r of `size` takes its part of each batch of 8.
template <class Step>
void train(Net& net, const Digits& digits, int rank, int size, bool with_branch, Step&& step) {
  for (int64_t i = 0; i < 30; ++i) {
    const auto images = digits.images[i].chunk(size)[static_cast<size_t>(rank)];
    const auto labels = digits.labels[i].chunk(size)[static_cast<size_t>(rank)];
    const auto loss = torch::cross_entropy_loss(net.forward(images, with_branch), labels);
    step(loss);
  }
}

torch::optim::SGD make_sgd(Net& net) {
  return torch::optim::SGD(net.parameters(),
                           torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
}

TEST(Torch, ThirtyStepsOnTwoRanksAreThoseOfOneRankWithTheJoinedBatch) {
  torch::manual_seed(7);
  const Digits digits;
  Net alone;
  const auto start = values(alone);
  auto plain = make_sgd(alone);
  train(alone, digits, 0, 1, true, [&](const Tensor& loss) {
    plain.zero_grad();
    loss.backward();
    plain.step();
  });
  const auto expected = values(alone);
  for (const bool adapters_zero_grad : {true, false})
    run_threads(2, [&](Communicator& comm) {
      Net net;
      if (comm.rank() == 0) set_values(net, start);
      auto sgd = make_sgd(net);
      auto optimizer = tutti::torch::distributed(comm, sgd, net);
      train(net, digits, comm.rank(), 2, true, [&](const Tensor& loss) {
        adapters_zero_grad ? optimizer.zero_grad() : sgd.zero_grad();
        loss.backward();
        optimizer.step();
      });
      const auto got = values(net);
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_LT((got[i] - expected[i]).abs().max().item<float>(), 1e-4) << i;
      EXPECT_GT((got[0] - start[0]).abs().max().item<float>(), 1e-2);  // the model has learned
      expect_equal_on_all_ranks(comm, got);
    });
}

TEST(Torch, GradientsLieInOnePlaceWithTheirParametersStrides) {
  run_threads(2, [](Communicator& comm) {
    Net net;
    torch::optim::SGD sgd(net.parameters(), 0.1);
    auto optimizer = tutti::torch::distributed(comm, sgd, net);
    const void* place = nullptr;
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      EXPECT_FALSE(net.conv->weight.grad().defined());
      net.forward(torch::rand({2, 2, 6, 6})).sum().backward();
      const auto gradient = net.conv->weight.grad();
      EXPECT_EQ(gradient.strides(), net.conv->weight.strides());
      EXPECT_EQ(gradient.stride(1), 1);  // channels_last
      EXPECT_TRUE(place == nullptr || place == gradient.data_ptr());
      place = gradient.data_ptr();
      optimizer.step();
      expect_equal_on_all_ranks(comm, {gradient});
      EXPECT_FALSE(net.frozen->weight.grad().defined());
    }
  });
}

// Rank 0 reaches the branch in step 0, both ranks in step 1, none in step 2.
TEST(Torch, AParameterThatARankDidNotReachCountsAsZerosThere) {
  run_threads(2, [](Communicator& comm) {
    Net net;
    auto sgd = make_sgd(net);
    auto optimizer = tutti::torch::distributed(comm, sgd, net);
    const auto images = torch::ones({2, 2, 6, 6});
    auto& bias = net.branch->bias;
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      const bool reaches = step == 1 || (step == 0 && comm.rank() == 0);
      net.forward(images, reaches).sum().backward();
      const auto own = reaches ? bias.grad().clone() : torch::zeros_like(bias);
      std::vector<float> sum(3);
      std::copy_n(own.data_ptr<float>(), 3, sum.begin());
      comm.allreduce_blocking("own", sum);
      optimizer.synchronize();
      const auto before = bias.detach().clone();
      if (step < 2) {
        ASSERT_TRUE(bias.grad().defined());
        for (size_t i = 0; i < 3; ++i) EXPECT_EQ(bias.grad().data_ptr<float>()[i], sum[i]);
      } else {
        EXPECT_FALSE(bias.grad().defined());
      }
      optimizer.step();
      // A parameter that no rank reached must not change, neither by momentum nor by weight decay.
      EXPECT_EQ(torch::equal(before, bias), step == 2);
      expect_equal_on_all_ranks(comm, values(net));
    }
  });
}

TEST(Torch, GradientsOfSeveralPassesAddUpAndTravelOnce) {
  run_threads(2, [](Communicator& comm) {
    torch::nn::Linear net(1, 1);
    fill(*net, 1);
    torch::optim::SGD sgd(net->parameters(), 1);
    auto optimizer = tutti::torch::distributed(comm, sgd, *net, {.backward_passes_per_step = 3});
    const auto rank = static_cast<float>(comm.rank());
    for (int pass = 1; pass <= 3; ++pass)
      net(filled({1, 1}, rank + static_cast<float>(pass))).sum().backward();
    optimizer.step();
    EXPECT_EQ(net->weight.item<float>(), 1 - 7.5f);  // the mean of 6 and 9
    EXPECT_EQ(net->bias.item<float>(), 1 - 3.0f);
  });
}

TEST(Torch, SumsPredivisionAndWires) {
  run_threads(2, [](Communicator& comm) {
    for (const bool sums : {true, false}) {
      torch::nn::Linear net(1, 1);
      fill(*net, 1);
      torch::optim::SGD sgd(net->parameters(), 1);
      auto optimizer =
          tutti::torch::distributed(comm, sgd, *net,
                                    {.op = sums ? tutti::ReduceOp::sum : tutti::ReduceOp::average,
                                     .predivide = 4,
                                     .wire = tutti::DataType::bf16});
      net(filled({1, 1}, 1 + 2 * comm.rank())).sum().backward();
      optimizer.step();
      EXPECT_EQ(net->weight.item<float>(), sums ? -3 : -1);
    }
  });
}

TEST(Torch, ClipsByTheNormOverAllParameters) {
  run_threads(2, [](Communicator& comm) {
    torch::nn::Linear net(torch::nn::LinearOptions(2, 1).bias(false));
    net->to(torch::kFloat64);
    fill(*net, 0);
    torch::optim::SGD sgd(net->parameters(), 1);
    auto optimizer = tutti::torch::distributed(comm, sgd, *net);
    // The mean of (0, 8) and (6, 0) is (3, 4).
    const auto input = comm.rank() == 0 ? torch::tensor({0., 8.}) : torch::tensor({6., 0.});
    net(input.to(torch::kFloat64)).sum().backward();
    EXPECT_EQ(optimizer.clip_by_global_norm(2.5), 5);
    optimizer.step();
    EXPECT_EQ(net->weight[0][0].item<double>(), -1.5);
    EXPECT_EQ(net->weight[0][1].item<double>(), -2);
  });
}

TEST(Torch, RankZerosParametersBuffersAndStateAreEveryones) {
  run_threads(3, [](Communicator& comm) {
    torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4));
    torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(0.1).amsgrad(true));
    const auto step = [&] {
      net->forward(torch::rand({5, 3})).pow(2).sum().backward();
      adam.step();
      adam.zero_grad();
    };
    for (int i = 0; i <= comm.rank(); ++i) step();  // each rank took another number of steps before
    auto optimizer = tutti::torch::distributed(comm, adam, *net);
    expect_equal_on_all_ranks(comm, values(*net));
    expect_equal_on_all_ranks(comm, net->buffers());
    ASSERT_EQ(adam.state().size(), 4u);
    for (const auto& parameter : net->parameters()) {
      const auto& state =
          static_cast<torch::optim::AdamParamState&>(state_of(adam.state(), parameter));
      EXPECT_EQ(state.step(), 1);
      ASSERT_TRUE(state.max_exp_avg_sq().defined());
      expect_equal_on_all_ranks(comm,
                                {state.exp_avg(), state.exp_avg_sq(), state.max_exp_avg_sq()});
    }
    net->forward(torch::rand({5, 3})).pow(2).sum().backward();
    optimizer.step();
    expect_equal_on_all_ranks(comm, values(*net));
    net->buffers()[0].fill_(comm.rank() + 1);
    optimizer.broadcast_buffers(1);
    EXPECT_EQ(net->buffers()[0][0].item<float>(), 2);
  });
}

// Rank 0 reaches a row in step 0, both ranks reach rows in step 1, none in step 2.
TEST(Torch, SparseGradientsTravelAsRows) {
  run_threads(2, [](Communicator& comm) {
    torch::nn::Embedding rows(torch::nn::EmbeddingOptions(5, 2).sparse(true));
    fill(*rows, 0);
    torch::optim::SGD sgd(rows->parameters(), 1);
    auto optimizer = tutti::torch::distributed(comm, sgd, *rows);
    const std::vector<std::vector<double>> expected = {
        {0, -1, 0, 0, 0}, {0, -2, -0.5, -0.5, 0}, {0, -2, -0.5, -0.5, 0}};
    for (int step = 0; step < 3; ++step) {
      step == 1 ? sgd.zero_grad() : optimizer.zero_grad();
      if (step == 0 && comm.rank() == 0) rows(torch::tensor({1, 1})).sum().backward();
      if (step == 1) rows(torch::tensor({1, 2 + comm.rank()})).sum().backward();
      optimizer.synchronize();
      EXPECT_EQ(rows->weight.grad().defined(), step < 2);
      if (step < 2) {
        EXPECT_TRUE(rows->weight.grad().is_sparse());
        EXPECT_EQ(rows->weight.grad()._nnz(), step == 0 ? 1 : 3);
      }
      optimizer.step();
      const auto want = torch::tensor(expected[static_cast<size_t>(step)], torch::kFloat);
      EXPECT_TRUE(torch::equal(rows->weight.select(1, 0), want)) << step << rows->weight;
      expect_equal_on_all_ranks(comm, values(*rows));
    }
  });
}

// A bag of words; each rank has the words of its half of the batch.
struct Words : torch::nn::Module {
  torch::nn::Embedding words{nullptr};
  torch::nn::Linear last{nullptr};
  Words() {
    words = register_module("words",
                            torch::nn::Embedding(torch::nn::EmbeddingOptions(20, 4).sparse(true)));
    last = register_module("last", torch::nn::Linear(4, 3));
  }
};

TEST(Torch, SparseEmbeddingsOnTwoRanksLearnWhatOneRankDoes) {
  torch::manual_seed(11);
  const auto texts = torch::randint(0, 20, {30, 8, 5});
  const auto labels = torch::randint(0, 3, {30, 8});
  Words alone;
  const auto start = values(alone);
  const auto loss = [&](Words& net, int64_t step, int rank, int size) {
    const auto part = static_cast<size_t>(rank);
    const auto found = net.words(texts[step].chunk(size)[part]).mean(1);
    return torch::cross_entropy_loss(net.last(found), labels[step].chunk(size)[part]);
  };
  torch::optim::SGD plain(alone.parameters(), 0.5);
  for (int64_t step = 0; step < 30; ++step) {
    plain.zero_grad();
    loss(alone, step, 0, 1).backward();
    plain.step();
  }
  const auto expected = values(alone);
  run_threads(2, [&](Communicator& comm) {
    Words net;
    if (comm.rank() == 0) set_values(net, start);
    torch::optim::SGD sgd(net.parameters(), 0.5);
    auto optimizer = tutti::torch::distributed(comm, sgd, net);
    for (int64_t step = 0; step < 30; ++step) {
      optimizer.zero_grad();
      loss(net, step, comm.rank(), 2).backward();
      optimizer.step();
    }
    const auto got = values(net);
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_LT((got[i] - expected[i]).abs().max().item<float>(), 1e-4) << i;
    EXPECT_GT((got[0] - start[0]).abs().max().item<float>(), 1e-2);
    expect_equal_on_all_ranks(comm, got);
  });
}

// Four rows of (1, 1) and a dense gradient of 2 x (2, 2) have the norm sqrt(8 + 8).
TEST(Torch, ClippingCountsSparseGradients) {
  run_threads(2, [](Communicator& comm) {
    Words net;
    fill(net, 0);
    torch::optim::SGD sgd({net.words->weight, net.last->bias}, 1);
    auto optimizer = tutti::torch::distributed(comm, sgd, net);
    (net.words(torch::arange(4)).narrow(1, 0, 2).sum() + 2 * net.last->bias.narrow(0, 0, 2).sum())
        .backward();
    EXPECT_DOUBLE_EQ(optimizer.clip_by_global_norm(2), 4);
    optimizer.step();
    EXPECT_FLOAT_EQ(net.words->weight[3][1].item<float>(), -0.5f);
    EXPECT_FLOAT_EQ(net.last->bias[1].item<float>(), -1);
    EXPECT_EQ(net.words->weight[4][0].item<float>(), 0);
  });
}

TEST(Torch, OtherMethodsOfExchangeAreThere) {
  const auto after = [](const tutti::DistributedOptions& options, float between, float expected) {
    run_threads(2, [=](Communicator& comm) {
      torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
      fill(*net, 0);
      torch::optim::SGD sgd(net->parameters(), 1);
      auto optimizer = tutti::torch::distributed(comm, sgd, *net, options);
      for (int step = 0; step < 2; ++step) {
        optimizer.zero_grad();
        net(filled({1, 1}, comm.rank() + 1)).sum().backward();
        optimizer.step();
        if (step == 0) {
          EXPECT_EQ(net->weight.item<float>(), between * static_cast<float>(comm.rank() + 1));
        }
      }
      optimizer.consolidate();
      EXPECT_EQ(net->weight.item<float>(), expected);
    });
  };
  after({.exchange = tutti::local_sgd(2)}, -1, -3);
  run_threads(2, [](Communicator& comm) {
    torch::nn::Linear net(torch::nn::LinearOptions(2, 1).bias(false));
    fill(*net, 0);
    torch::optim::SGD sgd(net->parameters(), 1);
    auto optimizer =
        tutti::torch::distributed(comm, sgd, *net, {.exchange = tutti::adasum_of_gradients()});
    // Adasum adds orthogonal gradients.
    net(torch::tensor({1.f - static_cast<float>(comm.rank()), static_cast<float>(comm.rank())}))
        .sum()
        .backward();
    optimizer.step();
    EXPECT_TRUE(torch::allclose(net->weight, filled({1, 2}, -1)));
  });
  run_threads(2, [](Communicator& comm) {
    torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
    fill(*net, 0);
    torch::optim::SGD sgd(net->parameters(), 1);
    auto optimizer =
        tutti::torch::distributed(comm, sgd, *net, {.noise = {.batch = 4, .most_passes = 4}});
    net(filled({1, 1}, comm.rank() + 1)).sum().backward();
    optimizer.step();
    EXPECT_EQ(net->weight.item<float>(), -1.5f);
    EXPECT_EQ(optimizer.backward_passes_per_step(), 1);
  });
}

// The user assigns a gradient between synchronize() and step(): step() uses the assigned tensor.
TEST(Torch, GradientsAssignedByHandAreTaken) {
  run_threads(2, [](Communicator& comm) {
    torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
    fill(*net, 0);
    torch::optim::SGD sgd(net->parameters(), 1);
    auto optimizer = tutti::torch::distributed(comm, sgd, *net);
    net->weight.mutable_grad() = filled({1, 1}, 1 + 2 * comm.rank());  // without a backward pass
    optimizer.synchronize();
    EXPECT_EQ(net->weight.grad().item<float>(), 2);
    net->weight.mutable_grad() = net->weight.grad() * 3;
    optimizer.step();
    EXPECT_EQ(net->weight.item<float>(), -6);
    optimizer.zero_grad();
    net(torch::ones({1, 1})).sum().backward();
    optimizer.skip();
    EXPECT_EQ(net->weight.item<float>(), -6);
  });
}

}  // namespace
