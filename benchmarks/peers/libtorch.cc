// Measures tutti::torch::distributed on a set of ready-made gradients, as ddp.py measures torch's
// own wrapper. The result is the time of a backward pass with the exchange minus that of the module
// alone. Steps of both take turns.
#include <torch/torch.h>

#include <algorithm>
#include <string>
#include <vector>

#include "benchmarks/common/data.h"
#include "benchmarks/common/flags.h"
#include "benchmarks/common/fork_team.h"
#include "benchmarks/common/gradient_set.h"
#include "benchmarks/common/pairs.h"
#include "benchmarks/common/program.h"
#include "benchmarks/common/row.h"
#include "benchmarks/common/scratch_folder.h"
#include "tutti/adapters/torch/distributed.h"

namespace tutti::benchmarks {

namespace {

using ::torch::Tensor;

/// A function whose backward returns a gradient that exists already.
struct Ready : ::torch::autograd::Function<Ready> {
  static Tensor forward(::torch::autograd::AutogradContext* context, const Tensor& chain,
                        const Tensor& /*weight*/, const Tensor& gradient) {
    context->saved_data["gradient"] = gradient;
    return chain.clone();
  }
  static ::torch::autograd::variable_list backward(::torch::autograd::AutogradContext* context,
                                                   ::torch::autograd::variable_list chain) {
    return {chain[0], context->saved_data["gradient"].toTensor(), {}};
  }
};

/// Weights that never change.
struct Model : ::torch::nn::Module {
  Model(const std::vector<int64_t>& counts, const std::vector<Tensor>& ready) : gradients(ready) {
    for (size_t i = 0; i < counts.size(); ++i)
      weights.push_back(register_parameter(std::to_string(i), ::torch::zeros(counts[i])));
  }
  Tensor forward(Tensor chain) {
    for (size_t i = 0; i < weights.size(); ++i)
      chain = Ready::apply(chain, weights[i], gradients[i]);
    return chain;
  }
  std::vector<Tensor> weights;
  const std::vector<Tensor>& gradients;
};

void clear_gradients(Model& model, bool fresh) {
  for (auto& weight : model.weights) {
    if (fresh)
      weight.mutable_grad() = Tensor();
    else if (weight.grad().defined())
      weight.mutable_grad().zero_();
  }
}

Timing timing_of(const std::vector<double>& times, double less) {
  const auto [least, most] = std::minmax_element(times.begin(), times.end());
  return {.median_us = median(times) - less,
          .min_us = *least - less,
          .max_us = *most - less,
          .repetitions = static_cast<int>(times.size()),
          .iterations = 1};
}

void run_gradients(const Flags& flags, ForkTeam& team, const std::string& folder) {
  ::torch::set_num_threads(1);
  const auto counts = read_gradient_set(flags.text("set"));
  const bool fresh = flags.whole("fresh") != 0;
  const auto own = Pattern::of_rank(team.rank());
  const auto mean = Pattern::reduced(team.size(), 1.0f / static_cast<float>(team.size()));
  std::vector<Tensor> gradients;
  for (const auto count : counts)
    own.fill(gradients.emplace_back(::torch::empty(count)).data_ptr<float>(), count);

  const auto comm = make_communicator(team, folder, flags.text("backend"));
  Model alone(counts, gradients), model(counts, gradients);
  ::torch::optim::SGD sgd(model.parameters(), 0);
  auto optimizer = torch::distributed(*comm, sgd, model);
  const auto start = ::torch::zeros(1).requires_grad_();
  const auto pass = [&](Model& of, bool exchanges) {  // returns microseconds on the slowest rank
    team.barrier();
    const double begin = now_us();
    of.forward(start).sum().backward();
    if (exchanges) optimizer.synchronize();
    return team.max(now_us() - begin);
  };

  std::vector<double> of_module, of_both;
  int64_t wrong = 0, bytes = 0;
  const int warmup = flags.whole("warmup");
  for (int turn = 0; turn < warmup + flags.whole("steps"); ++turn) {
    clear_gradients(alone, fresh);
    const double module = pass(alone, false);
    clear_gradients(model, fresh);
    const double both = pass(model, true);
    if (turn == 0)
      for (size_t i = 0; i < counts.size(); ++i) {
        wrong += mean.count_wrong(model.weights[i].grad().data_ptr<float>(), counts[i]);
        bytes += counts[i] * 4;
      }
    optimizer.skip();
    if (turn < warmup) continue;
    of_module.push_back(module);
    of_both.push_back(both);
  }
  wrong = team.sum(wrong);
  if (team.rank() != 0) return;
  Row row{.program = "libtorch",
          .case_name = "gradients",
          .way = "alone",
          .set = set_name(flags.text("set")),
          .bytes = bytes,
          .op = "average",
          .ranks = team.size(),
          .transport = flags.text("backend"),
          .timing = timing_of(of_module, 0),
          .words = {{"variant", flags.text("variant")}, {"torch", TORCH_VERSION}}};
  print(row);
  row.way = "libtorch";
  row.timing = timing_of(of_both, row.timing.median_us);
  row.wrong = wrong;
  print(row);
}

int run(int argc, char** argv) {
  const Flags flags(argc, argv,
                    {{"set", ""},
                     {"ranks", "2"},
                     {"steps", "5"},
                     {"warmup", "3"},
                     {"fresh", "0"},
                     {"backend", "shm"},
                     {"variant", "shipped"},
                     {"bind", "1"},
                     {"deadline", "120"}});
  if (flags.case_name() != "gradients")
    throw std::invalid_argument("the case is gradients, not " + flags.case_name());
  const ScratchFolder folder;
  return ForkTeam::run(flags.whole("ranks"), {}, static_cast<unsigned>(flags.whole("deadline")),
                       flags.whole("bind") != 0,
                       [&](ForkTeam& team) { run_gradients(flags, team, folder.path()); });
}

}  // namespace

}  // namespace tutti::benchmarks

int main(int argc, char** argv) {
  return tutti::benchmarks::run_program(tutti::benchmarks::run, argc, argv);
}
