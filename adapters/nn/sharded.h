#pragma once

#include <concepts>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/adapters/nn/layers/layers.h"
#include "tutti/adapters/nn/optimizers.h"
#include "tutti/adapters/sharded.h"
#include "tutti/adapters/sharded/placed_tensor.h"
#include "tutti/core/arena.h"

namespace tutti {
struct AdamSettings;  // adapters/nn/kernels/optimizer_steps.h
}

namespace tutti::nn {

/// The functions by which layers request their parameters from a sharded optimizer that keeps them
/// in parts. The layers of a model share it, and ShardedOptimizer::serve() fills it.
struct Gatherer {
  std::function<void(std::string_view name)> need, done;  // empty if parameters are whole
  /// The marks of parameters that were still divided when the optimizer was destroyed. With them,
  /// layers still refuse these parameters. It is empty while the optimizer exists.
  std::shared_ptr<const void> absent = {};
};

/// Wraps a layer so that its parameters are whole only while it computes.
std::unique_ptr<Layer> gathered(std::unique_ptr<Layer> layer, std::shared_ptr<Gatherer> gatherer);

/// Throws Error(invalid_argument), which names a parameter, while one of them is divided over the
/// ranks.
void require_whole(const std::vector<Parameter>& parameters);

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
    require_whole(parameters_);
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

/// Adam (or AdamW) fused with the reduction of the gradients. As soon as all ranks have an array's
/// gradient, each rank computes the mean of its share, updates its share of the parameters, and the
/// other ranks receive the new parameters. The mean itself is never stored. If the ranks share
/// memory, this divides the work and the moments by the number of ranks (stage 1 of ZeRO,
/// Rajbhandari et al. 2020). Parameters and gradients are f32 and in the library's memory.
class ShardedAdam {
 public:
  using Array = GradientArena::Array;
  /// Every rank makes the object with the same arguments. The Communicator must outlive it. Throws
  /// Error(invalid_argument) for an array that is not f32.
  ShardedAdam(Communicator& communicator, std::vector<Array> arrays, const AdamOptions& options,
              bool decoupled = false);
  ~ShardedAdam();

  /// Parameters are zero at first. Fill them on one rank and call broadcast().
  std::span<float> value(std::string_view name) const;
  std::span<float> gradient(std::string_view name) const;
  /// Broadcasts the parameters of rank `root` to all ranks.
  void broadcast(int root = 0);
  /// Announces that this rank's gradient of the array is final. This rank uses neither the gradient
  /// nor the value again in this step. Any thread may call this.
  void ready(std::string_view name) { arena_.ready(name); }
  /// Returns when all parameters are updated on this rank. Throws the errors of
  /// GradientArena::wait.
  void step();
  int64_t steps() const;
  /// Returns everything but the values, whole and equal on all ranks: "first_moment.NAME" and
  /// "second_moment.NAME" of every array, and "steps", i64. The tensors are copies, for
  /// checkpoints. The call is collective; make it between steps.
  std::vector<NamedState> state();
  /// Continues from what state() returned on any number of ranks. Every rank passes all of that
  /// state. It needs memory for the whole state until the next step has shown which share is this
  /// rank's own. Throws Error(invalid_argument), which names a tensor that is missing or has
  /// another size; then nothing was changed.
  void restore(const std::vector<NamedState>& state);
  /// Call it between steps.
  void set_learning_rate(double learning_rate);

 private:
  static void apply(void* self, int64_t offset, int64_t count, const std::byte* reduced);

  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  // The system provides zeroed memory page by page as it is touched, and this rank touches only its
  // share.
  using Moments = std::unique_ptr<float[], Free>;

  float* moments_of(const Moments& moments, const std::string& name) const;
  void forget_others_shares();

  std::unique_ptr<AdamSettings> settings_;
  Communicator& communicator_;
  std::vector<std::string> names_;
  Moments first_, second_;
  bool finds_share_ = false;  // true in the first step after restore()
  std::mutex mutex_;
  std::vector<ElementRange> share_;  // this rank's ranges in all moments; guarded by mutex_
  GradientArena arena_;              // last, because its destructor waits for the updates under way
};

}  // namespace tutti::nn
