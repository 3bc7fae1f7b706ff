#pragma once

#include <cmath>
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

#include "tutti/base/cpp20.h"
#include "tutti/core/communicator.h"
#include "tutti/kernels/convert.h"

namespace tutti {

/// A parameter as a trainer knows it: a name that is equal on all ranks, its value and its
/// gradient.
template <class P>
concept Parameter = requires(const P& parameter) {
  { parameter.name } -> std::convertible_to<std::string_view>;
  { parameter.value } -> std::convertible_to<TensorView>;
  { parameter.gradient } -> std::convertible_to<TensorView>;
};

/// What distributed() can wrap: parameters() yields the parameters, in the same order and number on
/// every rank and for as long as it is wrapped; step() uses their gradients.
template <class O>
concept Optimizer = requires(O& optimizer) {
  requires std::ranges::range<decltype(optimizer.parameters())>;
  requires Parameter<std::ranges::range_value_t<decltype(optimizer.parameters())>>;
  optimizer.step();
};

/// Optional: calls back during backward, with a parameter's name, as soon as its gradient is final.
/// Gradients then travel while backward goes on; without it they travel in step().
template <class O>
concept AnnouncesGradients = requires(O& optimizer,
                                      std::function<void(std::string_view)> callback) {
  optimizer.on_gradient_ready(callback);
};

/// Optional: named tensors of the optimizer itself (momenta), for broadcast_optimizer_state.
template <class O>
concept HasState = requires(O& optimizer) {
  requires std::ranges::range<decltype(optimizer.state())>;
  { std::ranges::begin(optimizer.state())->name } -> std::convertible_to<std::string_view>;
  { std::ranges::begin(optimizer.state())->tensor } -> std::convertible_to<TensorView>;
};

struct DistributedOptions {
  /// average: right where the trainer's gradient is the mean over its batch, as most are. Where it
  /// is the sum over the batch (tiny-dnn, plain loops without a division), take sum: averages would
  /// be smaller by the number of ranks than what one rank with the whole batch computes, and train
  /// on silently with a learning rate that is too small.
  ReduceOp op = ReduceOp::average;
  /// Backward passes whose gradients add up locally before they are exchanged, once.
  int backward_passes_per_step = 1;
  /// Gradients are divided by this before they travel and the average is multiplied by it: keeps
  /// sums of 16-bit wires in range.
  double predivide = 1.0;
  std::optional<DataType> wire = std::nullopt;  // f16 or bf16
  /// distributed() gives rank 0's parameters, and its optimizer's state, to every rank, so that the
  /// first gradients are of equal parameters already.
  bool broadcast_first = true;
};

/// Rank `root`'s values to all ranks. Blocking.
template <std::ranges::range Parameters>
void broadcast_parameters(Communicator& comm, Parameters&& parameters, int root = 0) {
  std::vector<Work> works;
  for (const auto& parameter : parameters)
    works.push_back(
        comm.broadcast("parameter " + std::string(parameter.name), parameter.value, root));
  for (auto& work : works) work.wait();
}

/// The optimizer's own tensors, likewise. Every rank must have as many.
template <HasState O>
void broadcast_optimizer_state(Communicator& comm, O& optimizer, int root = 0) {
  std::vector<Work> works;
  for (const auto& state : optimizer.state())
    works.push_back(comm.broadcast("state " + std::string(state.name), state.tensor, root));
  for (auto& work : works) work.wait();
}

/// Scales gradients so that their norm over all parameters is at most `most`; returns the norm they
/// had. Call it between synchronize() and step(), when every rank holds the same gradients. f32 and
/// f64 gradients.
template <std::ranges::range Parameters>
double clip_by_global_norm(Parameters&& parameters, double most) {
  double sum = 0;
  const auto add = [&]<class T>(const TensorView& gradient, T) {
    for (int64_t i = 0; i < gradient.count(); ++i) {
      const double value = gradient.as<T>()[i];
      sum += value * value;
    }
  };
  for (const auto& parameter : parameters) {
    const TensorView gradient = parameter.gradient;
    if (gradient.dtype() == DataType::f32)
      add(gradient, float{});
    else if (gradient.dtype() == DataType::f64)
      add(gradient, double{});
    else
      throw Error(ErrorCode::invalid_argument,
                  "clip_by_global_norm takes f32 and f64 gradients, \"" +
                      std::string(parameter.name) + "\" is " +
                      std::string(to_string(gradient.dtype())))
          .with_tensor(parameter.name);
  }
  const double norm = std::sqrt(sum);
  if (norm > most && norm > 0)
    for (const auto& parameter : parameters) {
      const TensorView gradient = parameter.gradient;
      scale(gradient.dtype(), gradient.data(), gradient.count(), Scale{most / norm, 1});
    }
  return norm;
}

/// An optimizer whose step() uses the gradients of all ranks; see distributed(). Used by one
/// thread, but for the gradient announcements, which may come from any.
template <Optimizer O>
class Distributed {
 public:
  Distributed(Communicator& comm, O& optimizer, const DistributedOptions& options)
      : comm_(comm), optimizer_(optimizer), options_(options) {
    if (options.backward_passes_per_step < 1)
      throw Error(ErrorCode::invalid_argument,
                  "backward_passes_per_step is " +
                      std::to_string(options.backward_passes_per_step) + ", want at least 1");
    reduce_.op = options.op;
    reduce_.wire = options.wire;
    reduce_.prescale = 1.0 / options.predivide;
    reduce_.postscale = options.predivide;
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
    if (options.broadcast_first) {
      broadcast_parameters(comm, optimizer.parameters());
      if constexpr (HasState<O>) broadcast_optimizer_state(comm, optimizer);
    }
    if constexpr (AnnouncesGradients<O>)
      optimizer.on_gradient_ready([this](std::string_view name) { gradient_ready(name); });
  }
  ~Distributed() {
    if constexpr (AnnouncesGradients<O>) optimizer_.on_gradient_ready(nullptr);
    for (auto& slot : slots_) {
      try {
        if (slot.work) slot.work.wait();
      } catch (const Error&) {
        // The step that would have used the gradient is never taken.
      }
    }
  }
  Distributed(const Distributed&) = delete;
  Distributed& operator=(const Distributed&) = delete;

  /// A parameter's gradient is final for this backward pass. Optimizers that announce gradients
  /// call it themselves. In the last pass before a step it sends the gradient on its way.
  void gradient_ready(std::string_view name) {
    const auto found = index_.find(name);
    if (found == index_.end())
      throw Error(ErrorCode::invalid_argument,
                  "\"" + std::string(name) + "\" is no parameter of the distributed optimizer")
          .with_tensor(name);
    const std::lock_guard lock(mutex_);
    auto& slot = slots_[found->second];
    ++slot.passes;
    if (slot.passes < options_.backward_passes_per_step) return;
    if (slot.work || synchronized_)
      throw Error(ErrorCode::invalid_argument,
                  "\"" + slot.name + "\" got another gradient before step(): " +
                      std::to_string(options_.backward_passes_per_step) +
                      " backward passes belong to a step; call step() between them, or set "
                      "backward_passes_per_step")
          .with_rank(comm_.rank())
          .with_tensor(slot.name);
    submit(slot);
  }

  /// Waits until every gradient holds what step() will use; for clipping in between. Parameters
  /// whose gradient was not announced are exchanged as they are, so that all ranks stay matched.
  void synchronize() {
    if (synchronized_) return;
    {
      const std::lock_guard lock(mutex_);
      for (auto& slot : slots_)
        if (!slot.work) submit(slot);
    }
    std::optional<Error> failed;
    for (auto& slot : slots_) {
      try {
        slot.work.wait();
      } catch (const Error& error) {
        if (!failed) failed = error;
      }
      slot.work = Work();
      slot.passes = 0;
    }
    if (failed) throw Error(*failed);
    synchronized_ = true;
  }

  /// The wrapped optimizer's step, on the gradients of all ranks.
  void step() {
    synchronize();
    synchronized_ = false;
    optimizer_.step();
  }

  /// Only the wrapped optimizer's step, on this rank's own gradients: for steps that all ranks
  /// agree not to exchange. Throws if gradients are on their way.
  void step_without_exchange() {
    for (auto& slot : slots_) {
      if (slot.work)
        throw Error(
            ErrorCode::invalid_argument,
            "the gradient of \"" + slot.name + "\" is on its way already; call synchronize() first")
            .with_tensor(slot.name);
      slot.passes = 0;
    }
    synchronized_ = false;
    optimizer_.step();
  }

  auto parameters() { return optimizer_.parameters(); }
  O& optimizer() { return optimizer_; }

 private:
  struct Slot {
    std::string name;
    TensorView gradient;
    Work work;
    int passes = 0;
  };
  void submit(Slot& slot) {
    slot.work = comm_.allreduce("gradient " + slot.name, slot.gradient, reduce_);
  }

  Communicator& comm_;
  O& optimizer_;
  const DistributedOptions options_;
  ReduceOptions reduce_;
  std::vector<Slot> slots_;
  std::map<std::string, size_t, std::less<>> index_;
  std::mutex mutex_;  // guards slots_ while gradients are announced
  bool synchronized_ = false;
};

/// Makes `optimizer` step on the gradients of all ranks: gradients are averaged (see
/// DistributedOptions::op where the trainer sums over its batch) under the names of their
/// parameters, while backward still runs if the optimizer announces them. Every rank calls it at
/// the same place, with its parameters made and before their first use: it blocks until all have
/// rank 0's. Both must outlive the result. Throws what broadcasting throws, and
/// Error(duplicate_name) for two parameters of one name.
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
