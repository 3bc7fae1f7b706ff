#pragma once

#include <concepts>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/adapters/exchange/adasum.h"
#include "tutti/adapters/exchange/alike.h"
#include "tutti/adapters/exchange/noise_scale.h"
#include "tutti/adapters/exchange/policy.h"
#include "tutti/adapters/exchange/rounds.h"
#include "tutti/adapters/optimizer.h"
#include "tutti/adapters/sharded/placed_tensor.h"
#include "tutti/base/cpp20.h"
#include "tutti/core/communicator.h"

namespace tutti {

struct DistributedOptions {
  /// Selects what is exchanged, how often, and how the ranks' values are combined: a value from
  /// policy.h or a policy of your own. It must be equal on all ranks.
  ExchangePolicy exchange = {};
  /// Take average if the trainer's gradient is the mean over its batch, as in most trainers. Take
  /// sum if it is the sum over the batch (tiny-dnn, plain loops without a division). With average,
  /// such gradients would be too small by a factor of the number of ranks, and training would
  /// silently go on with too small a learning rate.
  ReduceOp op = ReduceOp::average;
  /// Number of backward passes whose gradients are added up locally before one exchange.
  int backward_passes_per_step = 1;
  /// Gradients are divided by this before they are reduced, and the result is multiplied by it.
  /// This keeps sums in range on 16-bit wires.
  double predivide = 1.0;
  /// The dtype in which gradients are sent, f16 or bf16. If none, they are sent in their own dtype.
  std::optional<DataType> wire = std::nullopt;
  /// If true, distributed() broadcasts rank 0's parameters and optimizer state, so that the first
  /// gradients are computed from equal parameters. If false, all ranks must already have equal
  /// parameters.
  bool broadcast_first = true;
  /// Measures the noise of gradients and lets batches grow by it. This is only for synchronous
  /// averages.
  NoisePolicy noise = {};

  /// Returns how one gradient is reduced.
  ReduceOptions reduce() const {
    return {.op = op, .prescale = 1.0 / predivide, .postscale = predivide, .wire = wire};
  }
};

/// An optimizer whose step() uses the gradients of all ranks; see distributed(). One thread uses
/// it, except that any thread may announce gradients.
template <Optimizer O>
class Distributed {
  using Traits = OptimizerTraits<O>;

 public:
  /// distributed() calls this. The comment of distributed() describes the arguments and errors.
  Distributed(Communicator& comm, O& optimizer, const DistributedOptions& options)
      : comm_(comm), optimizer_(optimizer), options_(options), reduce_(options.reduce()) {
    if (options.backward_passes_per_step < 1)
      throw Error(ErrorCode::invalid_argument,
                  "backward_passes_per_step is " +
                      std::to_string(options.backward_passes_per_step) + ", expected at least 1");
    check_policy(options.exchange);
    check_noise_policy(options.noise, options.backward_passes_per_step, comm.size());
    check_settings_alike(comm, settings());
    for (const auto& parameter : optimizer.parameters()) {
      auto& slot = slots_.emplace_back();
      slot.name = parameter.name;
      slot.gradient = parameter.gradient;
      if (!index_.emplace(slot.name, slots_.size() - 1).second)
        throw Error(ErrorCode::duplicate_name,
                    "two parameters are named \"" + slot.name +
                        "\"; gradients are matched by name, so each needs its own")
            .with_tensor(slot.name);
    }
    std::vector<NamedTensor> values;
    for (const auto& parameter : optimizer.parameters())
      values.push_back({std::string(parameter.name), parameter.value});
    check_tensors_alike(comm, values);
    if (!options.broadcast_first) check_values_alike(comm, values);
    if (options.broadcast_first) {
      broadcast_parameters(comm, optimizer.parameters());
      if constexpr (Traits::kHasState) broadcast_optimizer_state(comm, optimizer);
    }
    make_exchange(std::move(values));
    if constexpr (Traits::kAnnouncesGradients)
      optimizer.on_gradient_ready([this](std::string_view name) { gradient_ready(name); });
  }
  ~Distributed() {
    if constexpr (Traits::kAnnouncesGradients) optimizer_.on_gradient_ready(nullptr);
    for (auto& slot : slots_) {
      try {
        if (slot.work) slot.work.wait();
        if (slot.earlier) slot.earlier.wait();
      } catch (const Error&) {
        // The step that would have used the gradient is never taken.
      }
    }
    try {
      if (squares_work_) squares_work_.wait();
    } catch (const Error&) {
      // No later step uses the measurement.
    }
  }
  Distributed(const Distributed&) = delete;
  Distributed& operator=(const Distributed&) = delete;

  /// Announces that a parameter's gradient is final for this backward pass. In the last pass before
  /// a step this starts the gradient's reduction. Optimizers that announce gradients call it
  /// themselves.
  void gradient_ready(std::string_view name) {
    const auto found = index_.find(name);
    if (found == index_.end())
      throw Error(ErrorCode::invalid_argument,
                  "\"" + std::string(name) + "\" is not a parameter of the distributed optimizer")
          .with_tensor(name);
    const std::lock_guard lock(mutex_);
    auto& slot = slots_[found->second];
    ++slot.passes;
    if (slot.passes < backward_passes_per_step()) return;
    const bool travels = gradients_travel();
    if (slot.sent || synchronized_ || (!travels && slot.passes > backward_passes_per_step()))
      throw Error(ErrorCode::invalid_argument,
                  "\"" + slot.name + "\" got another gradient before step(): " +
                      std::to_string(backward_passes_per_step()) +
                      " backward passes belong to a step; call step() between them, or set "
                      "backward_passes_per_step")
          .with_rank(comm_.rank())
          .with_tensor(slot.name);
    if (travels) submit(slot);
  }

  /// Waits until every gradient holds the value that step() will use, for example to clip gradients
  /// before step(). Gradients that were not announced are exchanged as they are, so that all ranks
  /// submit the same operations. If the policy does not exchange gradients in this step, each rank
  /// keeps its own gradients.
  void synchronize() {
    if (synchronized_) return;
    {
      const std::lock_guard lock(mutex_);
      for (auto& slot : slots_)
        if (gradients_travel() && !slot.sent) submit(slot);
    }
    if (adasum_) adasum_->combine();
    if (noise_) send_squares();
    std::optional<Error> failed;
    const auto wait = [&](auto&& what) {
      try {
        what();
      } catch (const Error& error) {
        if (!failed) failed = error;
      }
    };
    if constexpr (Traits::kReducesGradients)
      if (gradients_travel()) wait([&] { optimizer_.wait_for_gradients(); });
    for (auto& slot : slots_) {
      if (slot.work) wait([&] { finish(slot); });
      slot.work = Work();
      slot.sent = false;
      slot.passes = 0;
    }
    if (failed) throw Error(*failed);
    if (noise_) measure_noise();
    synchronized_ = true;
  }

  /// Takes the wrapped optimizer's step. It uses the gradients of all ranks; under a policy that
  /// exchanges parameters or changes, it uses this rank's own and then does the exchange that is
  /// due.
  void step() {
    synchronize();
    synchronized_ = false;
    optimizer_.step();
    if (rounds_) exchange_after_step();
  }

  /// Synchronizes but takes no step, for steps that all ranks agree to leave out. Throws if the
  /// policy exchanges parameters or changes, because such a policy counts the steps itself.
  void skip() {
    if (rounds_)
      throw Error(ErrorCode::invalid_argument,
                  "skip() excludes an exchange policy of parameters or changes, which counts the "
                  "steps itself; call step()")
          .with_rank(comm_.rank());
    synchronize();
    synchronized_ = false;
  }

  /// Gives all ranks the mean of their parameters if the policy lets them differ between exchanges.
  /// Call it at the end of training, or before a test or a checkpoint. It is collective. Training
  /// goes on from the mean.
  void consolidate() {
    if (rounds_) rounds_->consolidate();
  }

  /// Returns everything to save with a CheckpointFolder, or to load into, between two steps:
  /// "parameter.NAME", "optimizer.STATE" and the tensors of exchange_state(). Tensors that the
  /// policy lets differ between ranks are Held::own. If the same number of ranks loads them,
  /// training continues bit for bit; otherwise each rank begins with the mean of all. Waits for
  /// operations under way.
  std::vector<PlacedTensor> placed_state() {
    std::vector<PlacedTensor> all;
    const auto add = [&](const std::string& name, const TensorView& tensor, bool may_differ) {
      all.push_back({name,
                     tensor,
                     {tensor.shape(), may_differ ? Held::own : Held::replicated, comm_.size(),
                      comm_.rank()}});
    };
    if (rounds_) rounds_->arrive();
    for (const auto& parameter : optimizer_.parameters())
      add("parameter." + std::string(parameter.name), parameter.value, rounds_.has_value());
    if constexpr (Traits::kHasState)
      for (const auto& state : optimizer_.state())
        add("optimizer." + std::string(state.name), state.tensor, rounds_.has_value());
    for (const auto& state : exchange_state()) add(state.name, state.tensor, false);
    return all;
  }

  /// Returns the tensors that the exchange itself keeps from step to step. They are equal on all
  /// ranks after an exchange, when no operation is under way.
  std::vector<ExchangeState> exchange_state() const {
    auto all = rounds_ ? rounds_->state() : std::vector<ExchangeState>();
    if (noise_) all.push_back({"exchange.noise", noise_->state()});
    return all;
  }

  /// Returns the number of backward passes of the next step. The noise policy may let it grow.
  int backward_passes_per_step() const {
    return noise_ ? noise_->passes() : options_.backward_passes_per_step;
  }
  /// Returns the batch size, in samples of all ranks, above which larger batches help little
  /// (noise_scale.h). Returns 0 if nothing is measured.
  double noise_scale() const { return noise_ ? noise_->value() : 0; }

  /// Takes only the wrapped optimizer's step, on this rank's own gradients, for steps that all
  /// ranks agree not to exchange. Throws if a gradient's reduction has already started, or if the
  /// policy decides which steps exchange.
  void step_without_exchange() {
    if (rounds_)
      throw Error(ErrorCode::invalid_argument,
                  "step_without_exchange() excludes an exchange policy of parameters or changes, "
                  "which counts the steps itself; call step()")
          .with_rank(comm_.rank());
    for (auto& slot : slots_) {
      if (slot.sent)
        throw Error(
            ErrorCode::invalid_argument,
            "the gradient of \"" + slot.name + "\" is on its way already; call synchronize() first")
            .with_tensor(slot.name);
      slot.passes = 0;
    }
    synchronized_ = false;
    optimizer_.step();
  }

  auto parameters() { return optimizer_.parameters(); }  // parameters of the wrapped optimizer
  O& optimizer() { return optimizer_; }                  // the wrapped optimizer

 private:
  struct Slot {
    std::string name;
    TensorView gradient;
    Work work;
    Work earlier;       // the previous step's reduction, for a gradient on a device
    bool sent = false;  // true once this step's gradient was submitted
    int passes = 0;
    double squares = 0;  // sum of squares of this rank's gradient before it is reduced
  };
  // For gradients on a device, this makes their stream wait, not the host. The host checks the
  // result before the gradient is reduced again.
  void finish(Slot& slot) {
    if (slot.gradient.device().kind == DeviceKind::cpu) return slot.work.wait();
    slot.work.wait_on(slot.gradient.stream());
    slot.earlier = slot.work;
  }
  void submit(Slot& slot) {
    if (slot.earlier) std::exchange(slot.earlier, Work()).wait();
    if (noise_) {
      scale_to_passes();
      slot.squares = sum_of_squares(slot.gradient);
    }
    if constexpr (Traits::kReducesGradients)
      optimizer_.reduce_gradient(slot.name, reduce_);
    else
      slot.work = comm_.allreduce("gradient " + slot.name, slot.gradient, reduce_);
    slot.sent = true;
  }

  // Returns whether the next step's gradients are reduced one by one, as they become ready.
  bool gradients_travel() const { return rounds_ ? rounds_->next_step_is_synchronous() : !adasum_; }

  // Returns the settings that ranks compare before any rank changes a tensor.
  std::vector<std::string> settings() const {
    auto all = policy_settings(options_.exchange);
    const auto add = [&](const std::string& name, const std::string& value) {
      all.push_back(name + "=" + value);
    };
    add("op", std::string(to_string(options_.op)));
    add("backward_passes_per_step", std::to_string(options_.backward_passes_per_step));
    add("predivide", std::to_string(options_.predivide));
    add("wire", options_.wire ? std::string(to_string(*options_.wire)) : "none");
    add("broadcast_first", options_.broadcast_first ? "true" : "false");
    for (auto& setting : noise_settings(options_.noise)) all.push_back(std::move(setting));
    return all;
  }

  void make_exchange(std::vector<NamedTensor> values) {
    const auto& policy = options_.exchange;
    std::vector<NamedTensor> momenta;
    if (policy.combination == Combination::adasum && !policy.exchanges_parameters()) {
      if (options_.op != ReduceOp::average || options_.wire || options_.predivide != 1)
        throw Error(ErrorCode::invalid_argument,
                    "combination=adasum excludes op, wire and predivide; leave them as they are");
      std::vector<TensorView> gradients;
      for (const auto& slot : slots_) gradients.push_back(slot.gradient);
      adasum_.emplace(comm_, "gradients", std::move(gradients));
    }
    if (options_.noise.batch > 0) make_noise();
    if (!policy.exchanges_parameters()) return;
    if constexpr (Traits::kHasState)
      for (const auto& state : optimizer_.state())
        momenta.push_back({std::string(state.name), state.tensor});
    if (policy.momenta != Momenta::own && momenta.empty())
      throw Error(ErrorCode::invalid_argument,
                  "exchange policy: momenta are to be averaged or zeroed, but the optimizer has no "
                  "state(); use momenta=own");
    if (policy.outer.kind == OuterStep::Kind::slow_momentum && !Traits::kHasLearningRate)
      throw Error(ErrorCode::invalid_argument,
                  "exchange policy: outer=slow_momentum needs an optimizer with learning_rate()");
    rounds_.emplace(comm_, policy, reduce_, std::move(values), std::move(momenta));
  }

  void make_noise() {
    const auto want = [](bool holds, const std::string& message) {
      if (!holds)
        throw Error(ErrorCode::invalid_argument, "noise policy: batch excludes " + message);
    };
    const auto& policy = options_.exchange;
    want(policy.what == Exchanged::gradients,
         std::string("what=") + (policy.what == Exchanged::changes ? "changes" : "parameters") +
             "; use what=gradients");
    want(policy.combination == Combination::mean, "combination=adasum; use combination=mean");
    want(options_.op == ReduceOp::average,
         "op=" + std::string(to_string(options_.op)) + "; use op=average");
    for (const auto& slot : slots_)
      if ((slot.gradient.dtype() != DataType::f32 && slot.gradient.dtype() != DataType::f64) ||
          slot.gradient.device().kind != DeviceKind::cpu)
        throw Error(ErrorCode::invalid_argument, "noise policy: gradient of \"" + slot.name +
                                                     "\" is " +
                                                     std::string(to_string(slot.gradient.dtype())) +
                                                     ", expected f32 or f64 in host memory")
            .with_tensor(slot.name);
    noise_.emplace(options_.noise, options_.backward_passes_per_step, comm_.size());
  }

  // If batches grow, gradients are means over the passes of a step.
  void scale_to_passes() {
    if (noise_->grows()) reduce_.prescale = 1.0 / options_.predivide / noise_->passes();
  }

  void send_squares() {
    squares_[0] = 0;
    for (const auto& slot : slots_) squares_[0] += slot.squares;
    squares_work_ = comm_.allreduce("gradient squares", squares_);
  }

  void measure_noise() {
    squares_work_.wait();
    squares_work_ = Work();
    double mean = 0;
    for (const auto& slot : slots_) mean += sum_of_squares(slot.gradient);
    const double passes = noise_->passes();
    noise_->add(squares_[0] / (passes * passes), noise_->grows() ? mean : mean / (passes * passes));
  }

  void exchange_after_step() {
    double rate = 0;
    if constexpr (Traits::kHasLearningRate) rate = optimizer_.learning_rate();
    rounds_->after_step(rate);
  }

  Communicator& comm_;
  O& optimizer_;
  const DistributedOptions options_;
  ReduceOptions reduce_;
  std::vector<Slot> slots_;
  std::map<std::string, size_t, std::less<>> index_;
  std::mutex mutex_;  // guards slots_ while gradients are announced
  bool synchronized_ = false;
  std::optional<Adasum> adasum_;  // combines all gradients of a step together
  std::optional<Rounds> rounds_;  // exchanges parameters or changes
  std::optional<NoiseScale> noise_;
  // This rank's sum of squares over all gradients, which is then averaged over the ranks.
  std::vector<double> squares_ = {0.0};
  Work squares_work_;
};

/// Makes `optimizer` step on the gradients of all ranks. Gradients are averaged under the names of
/// their parameters; DistributedOptions::op explains when to sum them instead. If the optimizer
/// announces gradients, they are reduced while backward still runs. Every rank calls this at the
/// same point of the program, after its parameters are made and before they are first used. It
/// blocks until all ranks have rank 0's parameters, or, with broadcast_first = false, until it has
/// checked that all ranks have the same ones. `comm` and `optimizer` must outlive the result.
/// Throws Error(mismatch) if the ranks' models, settings or values differ, Error(duplicate_name) if
/// two parameters have the same name, and the errors of broadcast().
///
///   auto optimizer = tutti::distributed(*comm, sgd);
///   ...
///   model.backward(loss);
///   optimizer.step();
template <Optimizer O>
Distributed<O> distributed(Communicator& comm, O& optimizer,
                           const DistributedOptions& options = {}) {
  return Distributed<O>(comm, optimizer, options);
}

}  // namespace tutti
