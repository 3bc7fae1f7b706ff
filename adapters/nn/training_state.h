#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/adapters/checkpoint/checkpoint_folder.h"
#include "tutti/adapters/nn/data_loader.h"
#include "tutti/adapters/nn/sequential.h"
#include "tutti/adapters/nn/steps/step_agreement.h"
#include "tutti/adapters/optimizer.h"
#include "tutti/adapters/sampling/sampler.h"

namespace tutti::nn {

/// All that a training needs to go on as if it had not stopped, to the bit: the model's parameters,
/// also those that nobody trains, its buffers (the running values of batch norm, each rank's own),
/// the optimizer's state and what its exchange keeps, and by wish the loss scale and where in the
/// data it is. It takes the objects themselves, so that nothing of them is forgotten; they must
/// outlive it. Between steps; one thread.
///
///   nn::TrainingState training(*comm, model, optimizer, agreement, loader);
///   if (const auto found = training.load(checkpoints)) step = found->step;
///   ...
///   training.save(checkpoints, step);
class TrainingState {
 public:
  /// `optimizer`: what distributed() or sharded made, or one whose parameters are equal on all
  /// ranks anyhow. `parts`: any of StepAgreement, DataLoader and Sampler, in any order.
  template <class O, class... Parts>
  TrainingState(Communicator& comm, Sequential& model, O& optimizer, Parts&... parts)
      : comm_(comm), model_(model), trained_([&optimizer] { return trained_by(optimizer); }) {
    if constexpr (requires { optimizer.refresh(); })
      loaded_.emplace_back([&optimizer] { optimizer.refresh(); });
    (add(parts), ...);
  }

  /// What a CheckpointFolder saves and loads: "parameter.NAME", "optimizer.STATE", "buffer.NAME",
  /// "exchange...." and "step_agreement".
  std::vector<PlacedTensor> tensors() const;
  /// Where in the data it is.
  std::map<std::string, std::string> words() const;

  /// As CheckpointFolder::save() does it. Collective, like the rest.
  void save(CheckpointFolder& checkpoints, int64_t step) const {
    checkpoints.save(step, tensors(), words());
  }
  /// As CheckpointFolder::save_in_background() does it.
  void save_in_background(CheckpointFolder& checkpoints, int64_t step) const {
    checkpoints.save_in_background(step, tensors(), words());
  }
  /// Nothing where no checkpoint is. Throws Error(corrupt_data) where it lacks anything of this
  /// training, and what CheckpointFolder::load() throws; then nothing was changed.
  std::optional<LoadedCheckpoint> load(CheckpointFolder& checkpoints,
                                       const LoadOptions& options = {});

 private:
  using Words = std::map<std::string, std::string>;

  template <class O>
  static std::vector<PlacedTensor> trained_by(O& optimizer) {
    if constexpr (requires { optimizer.placed_state(); }) {
      return optimizer.placed_state();
    } else if constexpr (requires {
                           { optimizer.state() } -> std::same_as<std::vector<PlacedTensor>>;
                         }) {
      return optimizer.state();
    } else {
      static_assert(Optimizer<O>,
                    "the optimizer must have parameters() and step(), or be what "
                    "distributed() or Sharded made of one");
      auto all = placed_parameters(optimizer.parameters());
      if constexpr (OptimizerTraits<O>::kHasState)
        for (auto& state : tutti::placed_state(optimizer.state())) all.push_back(std::move(state));
      return all;
    }
  }
  void add(StepAgreement& agreement);
  void add(DataLoader& loader);
  void add(Sampler& sampler);

  Communicator& comm_;
  Sequential& model_;
  std::function<std::vector<PlacedTensor>()> trained_;  // the optimizer's, parameters and all
  std::vector<std::function<std::vector<PlacedTensor>()>> more_;
  std::vector<std::function<void(Words&)>> say_;
  std::vector<std::function<void(const Words&)>> check_;    // before anything is changed
  std::vector<std::function<void(const Words&)>> restore_;  // after that
  std::vector<std::function<void()>> loaded_;
};

}  // namespace tutti::nn
