#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/adapters/checkpoint/checkpoint_folder.h"
#include "tutti/adapters/nn/data.h"
#include "tutti/adapters/nn/sequential.h"
#include "tutti/adapters/nn/steps/steps.h"
#include "tutti/adapters/optimizer.h"
#include "tutti/adapters/sampling/sampler.h"

namespace tutti::nn {

/// Everything that training needs to continue bit for bit, as if it had not stopped. This is the
/// model's parameters, also those that are not trained; its buffers (the running values of batch
/// norm, which differ from rank to rank); and the optimizer's state with that of its exchange. The
/// loss scale and the position in the data can be added. This object refers to the model, the
/// optimizer and the other parts, which must outlive it. One thread uses it, between steps.
///
///     nn::TrainingState training(*comm, model, optimizer, agreement, loader);
///     if (const auto found = training.load(checkpoints)) step = found->step;
///     ...
///     training.save(checkpoints, step);
class TrainingState {
 public:
  /// `optimizer` was made by distributed() or nn::sharded(), or its parameters are equal on all
  /// ranks for another reason. `parts` are any of StepAgreement, DataLoader and Sampler, in any
  /// order.
  template <class O, class... Parts>
  TrainingState(Communicator& comm, Sequential& model, O& optimizer, Parts&... parts)
      : comm_(comm), model_(model), trained_([&optimizer] { return trained_by(optimizer); }) {
    if constexpr (requires { optimizer.refresh(); })
      loaded_.emplace_back([&optimizer] { optimizer.refresh(); });
    (add(parts), ...);
  }

  /// Returns the tensors that a CheckpointFolder saves and loads: "parameter.NAME",
  /// "optimizer.STATE", "buffer.NAME", "exchange...." and "step_agreement".
  std::vector<PlacedTensor> tensors() const;
  /// Returns the position in the data as a CheckpointFolder's `words`.
  std::map<std::string, std::string> words() const;

  /// Saves by CheckpointFolder::save(). It is collective, as load() is.
  void save(CheckpointFolder& checkpoints, int64_t step) const {
    checkpoints.save(step, tensors(), words());
  }
  /// Saves by CheckpointFolder::save_in_background().
  void save_in_background(CheckpointFolder& checkpoints, int64_t step) const {
    checkpoints.save_in_background(step, tensors(), words());
  }
  /// Loads a checkpoint, or returns nothing if there is none. Throws Error(corrupt_data) if the
  /// checkpoint lacks anything of this training, and the errors of CheckpointFolder::load(). If it
  /// throws, nothing was changed.
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
  std::function<std::vector<PlacedTensor>()> trained_;  // returns the optimizer's tensors, with the
                                                        // parameters
  std::vector<std::function<std::vector<PlacedTensor>()>> more_;
  std::vector<std::function<void(Words&)>> say_;
  std::vector<std::function<void(const Words&)>> check_;    // called before anything is changed
  std::vector<std::function<void(const Words&)>> restore_;  // called after all checks
  std::vector<std::function<void()>> loaded_;
};

}  // namespace tutti::nn
