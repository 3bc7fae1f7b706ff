#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/adapters/optimizer.h"
#include "tutti/adapters/sharded/norm.h"
#include "tutti/adapters/sharded/sharded_parameters.h"
#include "tutti/kernels/convert.h"

namespace tutti {

/// An optimizer of which each rank has a part (ZeRO, stages 1 to 3): it steps on shards of the
/// parameters, and its state is as small as they are. For optimizers that treat every element by
/// itself (SGD, Adam, AdamW, RMSProp), whose steps then equal those of one that has everything; one
/// that goes by norms of whole tensors must add them up over the ranks, as nn::Lars and nn::Lamb do
/// in an nn::ShardedOptimizer. O has step(), and may have state() as in distributed(). It runs over
/// every backend, by reduce_scatter and allgather.
///
///     auto optimizer = tutti::Sharded(comm, model.parameters(), {.stage = 2},
///                                     [](std::vector<tutti::Shard> shards) { return
///                                     MyAdam(shards); });
///
/// nn::sharded() makes one of the bundled optimizers.
template <class O>
class Sharded {
 public:
  /// `parameters` have name, value and gradient as in distributed(), the same on every rank;
  /// `make` returns the optimizer of the shards that it is given.
  template <YieldsParameters Parameters, class Make>
  Sharded(Communicator& comm, Parameters&& parameters, const ShardedOptions& options, Make&& make)
      : comm_(comm),
        parameters_(comm, wholes_of(std::forward<Parameters>(parameters)), options),
        optimizer_(std::forward<Make>(make)(parameters_.shards())) {}

  /// As soon as a gradient is final for this step, from any thread, so that it travels while
  /// backward goes on. Without it they travel in step().
  void gradient_ready(std::string_view name) { parameters_.gradient_ready(name); }
  /// Waits until the shards' gradients are those of all ranks, for clipping in between.
  void synchronize() { parameters_.wait_for_gradients(); }
  /// The optimizer's step on the shards; after it all ranks have the new parameters, or can gather
  /// them.
  void step() {
    synchronize();
    optimizer_.step();
    parameters_.publish();
  }
  /// Leaves the step out, as where ranks agree that a gradient is no number.
  void skip() {
    synchronize();
    parameters_.publish();
  }
  /// In the place of the model's own, which would write all gradients.
  void zero_grad() { parameters_.zero_gradients(); }

  /// Scales gradients so that their norm over all parameters, each element counted once, is at most
  /// `most`; returns the norm they had, equal on all ranks. Collective.
  double clip_by_global_norm(double most) {
    synchronize();
    const auto gradients = this->gradients();
    const double norm = global_norm(comm_, gradients);
    if (norm > most && norm > 0)
      for (const auto& gradient : gradients)
        scale(gradient.here.dtype(), gradient.here.data(), gradient.here.count(),
              Scale{most / norm, 1});
    return norm;
  }

  /// The shards' gradients; after synchronize() those of all ranks.
  std::vector<PlacedTensor> gradients() const {
    std::vector<PlacedTensor> all;
    for (const auto& shard : parameters_.shards())
      all.push_back({shard.name, shard.gradient, parameters_.placement_of(shard.name)});
    return all;
  }

  /// Everything to save and load, with its placement: "parameter.NAME" and "optimizer.STATE". What
  /// the optimizer names after a parameter and is as long as its shard is divided as that is; the
  /// rest (numbers of steps) is equal on all ranks.
  std::vector<PlacedTensor> state() {
    std::vector<PlacedTensor> all;
    const auto shards = parameters_.shards();
    for (const auto& shard : shards)
      all.push_back({"parameter." + shard.name, shard.value, parameters_.placement_of(shard.name)});
    for_each_state([&](const std::string& name, const TensorView& tensor) {
      const Shard* owner = nullptr;
      for (const auto& shard : shards)
        if (name.ends_with("." + shard.name) && tensor.count() == shard.value.count() &&
            (owner == nullptr || shard.name.size() > owner->name.size()))
          owner = &shard;
      all.push_back({"optimizer." + name, tensor,
                     owner ? parameters_.placement_of(owner->name) : Placement{tensor.shape()}});
    });
    return all;
  }
  /// After what state() names was changed, as by loading it: the whole parameters follow.
  void refresh() { parameters_.publish(); }

  /// Stage 3: see ShardedParameters. nn::gathered() calls them around a layer.
  void need(std::string_view name) { parameters_.need(name); }
  void done(std::string_view name) { parameters_.done(name); }  // see need
  void need_all() { parameters_.need_all(); }                   // see need

  /// Bytes that this rank holds of values and gradients, now, and at most in the last step that
  /// ended.
  ShardedMemory memory() const { return parameters_.memory(); }
  ShardedMemory peak_memory() const { return parameters_.peak_memory(); }  // see memory
  /// Bytes of the optimizer's state on this rank.
  int64_t state_bytes() {
    int64_t bytes = 0;
    for_each_state([&](const std::string&, const TensorView& tensor) { bytes += tensor.bytes(); });
    return bytes;
  }
  /// What memory(), peak_memory() and state_bytes() say, in one line.
  std::string describe_memory() {
    const auto held = memory(), most = peak_memory();
    return "held: values " + std::to_string(held.values) + ", gradients " +
           std::to_string(held.gradients) + ", state " + std::to_string(state_bytes()) +
           " bytes; at most in a step: values " + std::to_string(most.values) + ", gradients " +
           std::to_string(most.gradients);
  }
  O& optimizer() { return optimizer_; }  // of the shards

 protected:
  std::vector<AbsentMemory> take_absent() { return parameters_.take_absent(); }

 private:
  template <class Parameters>
  static std::vector<ShardedParameters::Whole> wholes_of(Parameters&& parameters) {
    std::vector<ShardedParameters::Whole> all;
    for (const auto& parameter : parameters)
      all.push_back({std::string(parameter.name), parameter.value, parameter.gradient});
    return all;
  }

  // Calls step(name, tensor) with what the optimizer keeps, if it keeps anything.
  template <class Step>
  void for_each_state(const Step& step) {
    if constexpr (OptimizerTraits<O>::kHasState)
      for (const auto& state : optimizer_.state()) step(std::string(state.name), state.tensor);
  }

  Communicator& comm_;
  ShardedParameters parameters_;
  O optimizer_;
};

template <class Parameters, class Make>
Sharded(Communicator&, Parameters&&, const ShardedOptions&, Make&&)
    -> Sharded<std::invoke_result_t<Make, std::vector<Shard>>>;

}  // namespace tutti
