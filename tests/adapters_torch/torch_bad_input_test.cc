// Wrong uses of LibTorch models, each reported in one line, and objects that end early.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tutti/adapters/torch/distributed.h"

namespace {

using tutti::Communicator;
using tutti::ErrorCode;
using tutti::test::expect_error;
using tutti::test::expect_refused;
using tutti::test::run_threads;

using Layers = std::vector<std::pair<std::string, torch::Tensor>>;

// Makes an f32 tensor, whatever the type of `value`.
torch::Tensor filled(at::IntArrayRef shape, double value) {
  return torch::full(shape, value, torch::kFloat);
}

// A module with these parameters, and SGD over them.
struct Model : torch::nn::Module {
  explicit Model(const Layers& layers) {
    for (const auto& [name, tensor] : layers) register_parameter(name, tensor);
  }
};

void expect_differs(const std::string& line, const std::function<Layers(int)>& layers) {
  run_threads(3, [&](Communicator& comm) {
    Model model(layers(comm.rank()));
    torch::optim::SGD sgd(model.parameters(), 0.1);
    expect_error(ErrorCode::mismatch, line, [&] { tutti::torch::distributed(comm, sgd, model); });
  });
}

TEST(TorchBadInput, ModelsThatDifferBetweenRanks) {
  const auto a = [] { return torch::ones({2, 3}); };
  expect_differs(
      "the model has a different number of parameters on rank 1 and on rank 0: expected 2, got 1, "
      "and "
      "the first that only one of them has is \"b\"; build the same model on every rank",
      [&](int rank) {
        return rank == 1 ? Layers{{"a", a()}} : Layers{{"a", a()}, {"b", a()}};
      });
  expect_differs(
      "parameter 0 is different on rank 2 and on rank 0: expected \"a\", got \"b\"; build the same "
      "model on every rank",
      [&](int rank) {
        return rank == 2 ? Layers{{"b", a()}, {"a", a()}} : Layers{{"a", a()}, {"b", a()}};
      });
  expect_differs(
      "parameter \"b\" has a different type or shape on rank 1 and on rank 0: expected f32[2,3], "
      "got "
      "f32[3,2]",
      [&](int rank) {
        return Layers{{"a", a()}, {"b", rank == 1 ? torch::ones({3, 2}) : a()}};
      });
  expect_differs(
      "parameter \"a\" has a different type or shape on rank 2 and on rank 0: expected f32[2,3], "
      "got f64[2,3]",
      [&](int rank) {
        return Layers{{"a", rank == 2 ? a().to(torch::kFloat64) : a()}};
      });
  expect_differs("expected f32[2,3], got f32[2,3] with strides [1,2]", [&](int rank) {
    return Layers{{"a", rank == 1 ? torch::ones({3, 2}).t() : a()}};
  });
}

TEST(TorchBadInput, OptimizersThatDifferBetweenRanks) {
  run_threads(2, [](Communicator& comm) {
    torch::nn::Linear net(1, 1);
    torch::optim::SGD sgd(net->parameters(), comm.rank() == 0 ? 0.5 : 0.25);
    expect_error(ErrorCode::mismatch,
                 "the optimizer has different settings on rank 1 and on rank 0: expected group 0=2 "
                 "parameters with learning rate 0.5, got group 0=2 parameters with learning rate "
                 "0.25",
                 [&] { tutti::torch::distributed(comm, sgd, *net); });
  });
}

TEST(TorchBadInput, OptionsThatDifferBetweenRanks) {
  using namespace torch::optim;
  using Make = std::function<std::unique_ptr<Optimizer>(std::vector<torch::Tensor>, bool)>;
  const auto make = [](auto options, auto change) -> Make {
    return [=](std::vector<torch::Tensor> parameters, bool changed) {
      auto own = options;
      if (changed) change(own);
      using Own = std::conditional_t<
          std::is_same_v<decltype(own), SGDOptions>, SGD,
          std::conditional_t<
              std::is_same_v<decltype(own), AdamOptions>, Adam,
              std::conditional_t<std::is_same_v<decltype(own), AdamWOptions>, AdamW,
                                 std::conditional_t<std::is_same_v<decltype(own), AdagradOptions>,
                                                    Adagrad, RMSprop>>>>;
      return std::make_unique<Own>(std::move(parameters), own);
    };
  };
  const std::pair<const char*, Make> all[] = {
      {"momentum 0.5", make(SGDOptions(0.1), [](auto& own) { own.momentum(0.5); })},
      {"amsgrad true", make(AdamOptions(0.1), [](auto& own) { own.amsgrad(true); })},
      {"weight decay 0.5", make(AdamWOptions(0.1), [](auto& own) { own.weight_decay(0.5); })},
      {"lr decay 0.5", make(AdagradOptions(0.1), [](auto& own) { own.lr_decay(0.5); })},
      {"alpha 0.5", make(RMSpropOptions(0.1), [](auto& own) { own.alpha(0.5); })}};
  for (const auto& [words, optimizer_of] : all)
    run_threads(2, [&, words = words](Communicator& comm) {
      torch::nn::Linear net(1, 1);
      const auto own = optimizer_of(net->parameters(), comm.rank() == 1);
      try {
        tutti::torch::distributed(comm, *own, *net);
        ADD_FAILURE() << words << " was taken";
      } catch (const tutti::Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::mismatch);
        const std::string line = error.what();
        EXPECT_NE(line.find("expected options of group 0="), line.npos) << line;
        EXPECT_GT(line.find(words), line.find("got ")) << line;
        EXPECT_NE(line.find(words), line.npos) << line;
      }
    });
}

// An optimizer with state that save() and load() do not transfer.
struct Stateful : torch::optim::SGD {
  explicit Stateful(std::vector<torch::Tensor> parameters) : SGD(std::move(parameters), 0.1) {}
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}
};

TEST(TorchBadInput, AStateThatDoesNotTravel) {
  run_threads(2, [](Communicator& comm) {
    torch::nn::Linear net(1, 1);
    Stateful own(net->parameters());
    // The optimizer is accepted while no rank has a state, and refused once rank 0 has one.
    tutti::torch::distributed(comm, own, *net);
    static_cast<torch::optim::SGDOptions&>(own.param_groups()[0].options()).momentum(0.5);
    if (comm.rank() == 0) {
      net(torch::ones({1, 1})).sum().backward();
      own.step();
      own.zero_grad();
    }
    expect_refused("Stateful on rank " + std::to_string(comm.rank()) +
                       " has a state and no save() and load() that bring it to other ranks; give "
                       "it both, or clear broadcast_first and make the states equal yourself",
                   [&] { tutti::torch::distributed(comm, own, *net); });
    tutti::torch::distributed(comm, own, *net, {.broadcast_first = false});
  });
}

TEST(TorchBadInput, ParametersThatDoNotTravel) {
  const auto refused = [](const std::string& line, const torch::Tensor& tensor) {
    run_threads(1, [&](Communicator& comm) {
      Model model({{"a", tensor}});
      torch::optim::SGD sgd(model.parameters(), 0.1);
      expect_refused(line, [&] { tutti::torch::distributed(comm, sgd, model); });
    });
  };
  refused(
      "\"a\" on rank 0 has elements of type ComplexFloat, which do not travel; split them into "
      "real parts (at::view_as_real)",
      torch::ones({2}, torch::kComplexFloat));
  refused(
      "\"a\" on rank 0 has shape [2,2] and strides [4,1], which leave gaps or overlap; give the "
      "module a contiguous tensor",
      torch::ones({2, 4}).narrow(1, 0, 2));
  refused(
      "\"a\" on rank 0 is a dense tensor on meta, expected a dense one in host memory or on a GPU "
      "of CUDA; move the model there before distributed()",
      torch::empty({2}, torch::kMeta));
}

TEST(TorchBadInput, OptimizersThatCannotBeDistributed) {
  run_threads(1, [](Communicator& comm) {
    torch::nn::Linear net(1, 1), other(1, 1);
    torch::optim::LBFGS lbfgs(net->parameters(), 0.1);
    expect_refused(
        "LBFGS on rank 0 evaluates the model several times in a step, which "
        "distributed() cannot average; take SGD, Adam or another",
        [&] { tutti::torch::distributed(comm, lbfgs, *net); });
    torch::optim::SGD sgd(other->parameters(), 0.1);
    expect_refused(
        "the optimizer on rank 0 has 2 parameters that the module has not; give "
        "distributed() the module that owns them all",
        [&] { tutti::torch::distributed(comm, sgd, *net); });
    tutti::torch::check_version(TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR);
    expect_error(ErrorCode::version,
                 "this program is compiled for LibTorch 0.4 and tutti::torch for",
                 [] { tutti::torch::check_version(0, 4); });
  });
}

TEST(TorchBadInput, SparseGradientsThatCannotBeCombined) {
  run_threads(1, [](Communicator& comm) {
    torch::nn::Embedding rows(torch::nn::EmbeddingOptions(5, 2).sparse(true));
    torch::optim::SGD sgd(rows->parameters(), 1);
    for (const auto& options : {tutti::DistributedOptions{.op = tutti::ReduceOp::max},
                                tutti::DistributedOptions{.exchange = tutti::adasum_of_gradients()},
                                tutti::DistributedOptions{.noise = {.batch = 4}}})
      expect_refused(
          "\"weight\" on rank 0 has sparse gradients, which are averaged or summed and "
          "nothing else; leave op, noise and exchange.combination as they are, or make "
          "the embedding without sparse",
          [&] { tutti::torch::distributed(comm, sgd, *rows, options); });
    auto optimizer = tutti::torch::distributed(comm, sgd, *rows);
    rows(torch::tensor({1})).sum().backward();
    rows->weight.mutable_grad() = torch::ones({5, 2});
    expect_refused("has another gradient than the one on its way", [&] { optimizer.step(); });
  });
}

TEST(TorchBadInput, OneBackwardPassTooMany) {
  run_threads(2, [](Communicator& comm) {
    torch::nn::Linear net(1, 1);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto optimizer = tutti::torch::distributed(comm, sgd, *net);
    const auto input = torch::ones({1, 1});
    net(input).sum().backward();
    expect_refused(
        "got another gradient before step(): 1 backward passes belong to a step; call "
        "step() between them, or set backward_passes_per_step",
        [&] { net(input).sum().backward(); });
    optimizer.step();
    optimizer.zero_grad();
    net(input).sum().backward();
    optimizer.step();
  });
}

TEST(TorchBadInput, AGradientThatIsReplacedWhileItTravels) {
  run_threads(2, [](Communicator& comm) {
    torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
    torch::optim::SGD sgd(net->parameters(), 1);
    auto optimizer = tutti::torch::distributed(comm, sgd, *net);
    net(torch::ones({1, 1})).sum().backward();
    const auto gradient = net->weight.grad();
    const std::string line =
        "\"weight\" on rank " + std::to_string(comm.rank()) +
        " has another gradient than the one on its way: expected the tensor that backward wrote, "
        "got ";
    net->weight.mutable_grad() = gradient * 2;
    expect_refused(line + "another tensor; change gradients between synchronize() and step()",
                   [&] { optimizer.step(); });
    optimizer.zero_grad();
    expect_refused(line + "none", [&] { optimizer.step(); });
    net->weight.mutable_grad() = gradient;
    const float before = net->weight.item<float>();
    optimizer.step();
    EXPECT_FLOAT_EQ(net->weight.item<float>(), before - 1);
  });
}

TEST(TorchBadInput, AGradientOfAnotherShape) {
  run_threads(1, [](Communicator& comm) {
    torch::nn::Linear net(torch::nn::LinearOptions(2, 1).bias(false));
    torch::optim::SGD sgd(net->parameters(), 1);
    auto optimizer = tutti::torch::distributed(comm, sgd, *net);
    net->weight.mutable_grad() = torch::ones({2});
    expect_refused(
        "\"weight\" on rank 0 was given a gradient of shape [2], expected [1,2]; assign "
        "one of the parameter's shape",
        [&] { optimizer.step(); });
  });
}

TEST(TorchBadInput, AParameterThatIsThawedLater) {
  run_threads(1, [](Communicator& comm) {
    torch::nn::Linear net(1, 1);
    net->bias.requires_grad_(false);
    torch::optim::SGD sgd(net->parameters(), 1);
    auto optimizer = tutti::torch::distributed(comm, sgd, *net);
    net->bias.requires_grad_(true);
    expect_refused(
        "\"bias\" on rank 0 requires a gradient now and did not when distributed() was "
        "called, so ranks would not exchange it; thaw it before, or make it again",
        [&] { optimizer.step(); });
  });
}

TEST(TorchBadInput, AnOptimizerThatGrewSince) {
  run_threads(1, [](Communicator& comm) {
    torch::nn::Linear net(1, 1);
    torch::optim::SGD sgd({net->weight}, 1);
    auto optimizer = tutti::torch::distributed(comm, sgd, *net);
    sgd.add_param_group(torch::optim::OptimizerParamGroup(std::vector<torch::Tensor>{net->bias}));
    expect_refused(
        "the optimizer on rank 0 has 2 parameters and had 1 when distributed() was "
        "called; call it after the last add_param_group()",
        [&] { optimizer.step(); });
  });
}

// If gradients are exchanged, parameters may get new memory later; if values are exchanged, they
// may not.
TEST(TorchBadInput, ParametersThatMoveLater) {
  run_threads(1, [](Communicator& comm) {
    for (const bool values : {false, true}) {
      torch::nn::Linear net(1, 1);
      torch::optim::SGD sgd(net->parameters(), 1);
      tutti::DistributedOptions options;
      if (values) options.exchange = tutti::local_sgd(2);
      auto optimizer = tutti::torch::distributed(comm, sgd, *net, options);
      const auto before = net->weight.data();  // keeps the old memory, so that it is not reused
      net->weight.set_data(torch::ones({1, 1}));
      if (values)
        for (const bool steps : {true, false})
          expect_refused(
              "\"weight\" on rank 0 has other memory than when distributed() was called, "
              "and this policy exchanges values; load, move and cast the model before",
              [&] { steps ? optimizer.step() : optimizer.consolidate(); });
      else
        optimizer.step();
    }
  });
}

// The optimizer and the adapter hold the parameters, so the step works as usual.
TEST(TorchBadInput, AModuleThatIsFreedWhileGradientsTravel) {
  run_threads(2, [](Communicator& comm) {
    auto net = std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(1, 1).bias(false));
    const auto weight = net->weight;
    torch::optim::SGD sgd(net->parameters(), 1);
    auto optimizer = tutti::torch::distributed(comm, sgd, *net);
    const float before = weight.item<float>();
    net->forward(filled({1, 1}, 1 + comm.rank())).sum().backward();
    net.reset();
    optimizer.step();
    EXPECT_FLOAT_EQ(weight.item<float>(), before - 1.5f);
    optimizer.broadcast_buffers();
  });
}

TEST(TorchBadInput, AnAdapterThatEndsWhileGradientsTravel) {
  run_threads(2, [](Communicator& comm) {
    torch::nn::Linear net(torch::nn::LinearOptions(300, 300).bias(false));
    torch::optim::SGD sgd(net->parameters(), 1);
    torch::Tensor averaged, on_its_way;
    for (const bool waits : {true, false}) {
      auto optimizer = tutti::torch::distributed(comm, sgd, *net);
      net->weight.mutable_grad() = torch::Tensor();
      net(filled({1, 300}, 1 + comm.rank())).sum().backward();
      (waits ? averaged : on_its_way) = net->weight.grad();
      if (waits) optimizer.step();
    }
    EXPECT_TRUE(torch::equal(averaged, filled({300, 300}, 1.5f)));
    EXPECT_TRUE(torch::equal(on_its_way, torch::zeros({300, 300})));
    // Without the adapter, torch's optimizer works on its own again.
    net(torch::ones({1, 300})).sum().backward();
    EXPECT_TRUE(torch::equal(net->weight.grad(), torch::ones({300, 300})));
    sgd.step();
  });
}

}  // namespace
