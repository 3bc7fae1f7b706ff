#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/adapters/nn/layers/layers.h"
#include "tutti/adapters/nn/optimizers.h"
#include "tutti/adapters/sharded.h"

namespace tutti::nn {

/// The functions by which layers request their parameters from a sharded optimizer that keeps them
/// in parts. The layers of a model share it, and ShardedOptimizer::serve() fills it.
struct Gatherer {
  std::function<void(std::string_view name)> need, done;  // empty if parameters are whole
  /// The marks of parameters that were still divided when the optimizer was destroyed. With them,
  /// layers still refuse these parameters. It is empty while the optimizer exists.
  std::vector<AbsentMemory> absent = {};
};

/// Wraps a layer so that its parameters are whole only while it computes.
std::unique_ptr<Layer> gathered(std::unique_ptr<Layer> layer, std::shared_ptr<Gatherer> gatherer);

/// tutti::Sharded of a bundled optimizer. Lars and Lamb use the norms of the whole parameters.
/// Gradients are reduced while backward goes on. The parameters must outlive this object.
template <class O>
class ShardedOptimizer : public Sharded<O> {
 public:
  template <class Options>
  ShardedOptimizer(Communicator& comm, std::vector<Parameter> parameters, const Options& options,
                   const ShardedOptions& sharded)
      : Sharded<O>(
            comm, parameters, sharded,
            [&](const std::vector<Shard>& shards) {
              std::vector<Parameter> parts;
              for (const auto& shard : shards)
                parts.push_back(
                    {shard.name, shard.value, shard.gradient, std::make_shared<GradientReady>()});
              if constexpr (std::constructible_from<O, std::vector<Parameter>, Options, Wholes>)
                return O(std::move(parts), options, wholes_of(comm, parameters));
              else
                return O(std::move(parts), options);
            }),
        parameters_(std::move(parameters)) {
    for (auto& parameter : parameters_)
      if (parameter.ready)
        *parameter.ready = [this](std::string_view name) { this->gradient_ready(name); };
  }
  ~ShardedOptimizer() {
    for (auto& parameter : parameters_)
      if (parameter.ready) *parameter.ready = nullptr;
    if (gatherer_) *gatherer_ = {{}, {}, this->take_absent()};
  }
  ShardedOptimizer(const ShardedOptimizer&) = delete;
  ShardedOptimizer& operator=(const ShardedOptimizer&) = delete;

  /// Supplies the layers that share `gatherer` with their parameters.
  void serve(std::shared_ptr<Gatherer> gatherer) {
    gatherer_ = std::move(gatherer);
    gatherer_->need = [this](std::string_view name) { Sharded<O>::need(name); };
    gatherer_->done = [this](std::string_view name) { Sharded<O>::done(name); };
  }
  /// Returns the whole parameters. In stage 3 it throws Error(invalid_argument) while one of them
  /// is divided; call need_all() first.
  const std::vector<Parameter>& parameters() const {
    for (const auto& parameter : parameters_) require_present(parameter.name, parameter.value);
    return parameters_;
  }
  void set_learning_rate(double rate) { this->optimizer().set_learning_rate(rate); }

 private:
  static Wholes wholes_of(Communicator& comm, const std::vector<Parameter>& parameters) {
    Wholes wholes;
    for (const auto& parameter : parameters) wholes.shapes.push_back(parameter.value.shape());
    wholes.add_up = [&comm](std::span<double> sums) {
      comm.allreduce("sharded norms", sums, ReduceOp::sum).wait();
    };
    return wholes;
  }

  std::vector<Parameter> parameters_;
  std::shared_ptr<Gatherer> gatherer_;
};

}  // namespace tutti::nn
