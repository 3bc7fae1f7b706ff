#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/adapters/optimizer.h"
#include "tutti/adapters/sharded/placed_tensor.h"
#include "tutti/adapters/sharded/sharded_parameters.h"
#include "tutti/kernels/convert.h"

namespace tutti {

/// An optimizer of which each rank holds a part (ZeRO, stages 1 to 3). It steps on shards of the
/// parameters, and its state is only as large as the shards. It suits optimizers that treat every
/// element by itself (SGD, Adam, AdamW, RMSProp): their steps equal those of one optimizer that has
/// all parameters. An optimizer that uses norms of whole tensors must add them up over the ranks,
/// as nn::Lars and nn::Lamb do in an nn::ShardedOptimizer. O has step() and may have state(), as
/// for distributed(). It runs over every backend, by reduce_scatter and allgather.
///
///     auto optimizer = tutti::Sharded(comm, model.parameters(), {.stage = 2},
///                                     [](std::vector<tutti::Shard> shards) { return
///                                     MyAdam(shards); });
///
/// nn::sharded() makes one of the bundled optimizers.
template <class O>
class Sharded {
 public:
  /// `parameters` have name, value and gradient as for distributed(), and are the same on every
  /// rank. `make` receives the shards and returns their optimizer.
  template <YieldsParameters Parameters, class Make>
  Sharded(Communicator& comm, Parameters&& parameters, const ShardedOptions& options, Make&& make)
      : comm_(comm),
        parameters_(comm, wholes_of(std::forward<Parameters>(parameters)), options),
        optimizer_(std::forward<Make>(make)(parameters_.shards())) {}

  /// Announces that a gradient is final for this step, so that it is reduced while backward goes
  /// on. Any thread may call it. step() reduces the gradients that were not announced.
  void gradient_ready(std::string_view name) { parameters_.gradient_ready(name); }
  /// Waits until the shards' gradients are reduced over all ranks, for example to clip them before
  /// step().
  void synchronize() { parameters_.wait_for_gradients(); }
  /// Takes the optimizer's step on the shards. After it all ranks have the new parameters, or can
  /// gather them.
  void step() {
    synchronize();
    optimizer_.step();
    parameters_.publish();
  }
  /// Leaves the step out, for example because the ranks agree that a gradient is not a number.
  void skip() {
    synchronize();
    parameters_.publish();
  }
  /// Call this instead of the model's own zero_grad(), which would write all gradients.
  void zero_grad() { parameters_.zero_gradients(); }

  /// Scales gradients so that their norm over all parameters is at most `most`. Each element is
  /// counted once. Returns the norm before the scaling, equal on all ranks. Collective.
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

  /// Returns the shards' gradients. After synchronize() they are reduced over all ranks.
  std::vector<PlacedTensor> gradients() const {
    std::vector<PlacedTensor> all;
    for (const auto& shard : parameters_.shards())
      all.push_back({shard.name, shard.gradient, parameters_.placement_of(shard.name)});
    return all;
  }

  /// Returns everything to save and load, with its placement: "parameter.NAME" and
  /// "optimizer.STATE". A state tensor that is named after a parameter and as long as its shard is
  /// divided like that parameter. Other state tensors (numbers of steps) are equal on all ranks.
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
  /// Updates the whole parameters after the tensors of state() were changed, for example by loading
  /// them.
  void refresh() { parameters_.publish(); }

  /// Makes a parameter whole until done(). Only for stage 3; see ShardedParameters. nn::gathered()
  /// calls these two functions around a layer.
  void need(std::string_view name) { parameters_.need(name); }
  void done(std::string_view name) { parameters_.done(name); }  // see need
  void need_all() { parameters_.need_all(); }                   // see need

  /// Returns the bytes of values and gradients that this rank holds now.
  ShardedMemory memory() const { return parameters_.memory(); }
  ShardedMemory peak_memory() const {
    return parameters_.peak_memory();
  }  // the maxima of both fields in the last step that ended
  /// Returns the bytes of the optimizer's state on this rank.
  int64_t state_bytes() {
    int64_t bytes = 0;
    for_each_state([&](const std::string&, const TensorView& tensor) { bytes += tensor.bytes(); });
    return bytes;
  }
  /// Returns memory(), peak_memory() and state_bytes() as one line of text.
  std::string describe_memory() {
    const auto held = memory(), most = peak_memory();
    return "held: values " + std::to_string(held.values) + ", gradients " +
           std::to_string(held.gradients) + ", state " + std::to_string(state_bytes()) +
           " bytes; at most in a step: values " + std::to_string(most.values) + ", gradients " +
           std::to_string(most.gradients);
  }
  O& optimizer() { return optimizer_; }  // the optimizer of the shards

 protected:
  std::shared_ptr<const void> take_absent() { return parameters_.take_absent(); }

 private:
  template <class Parameters>
  static std::vector<ShardedParameters::Whole> wholes_of(Parameters&& parameters) {
    std::vector<ShardedParameters::Whole> all;
    for (const auto& parameter : parameters)
      all.push_back({std::string(parameter.name), parameter.value, parameter.gradient});
    return all;
  }

  // Calls step(name, tensor) for each tensor of the optimizer's state, if it has one.
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
