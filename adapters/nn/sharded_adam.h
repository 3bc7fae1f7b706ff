#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/adapters/nn/optimizers.h"
#include "tutti/adapters/sharded/placement.h"
#include "tutti/core/arena.h"

namespace tutti {
struct AdamSettings;  // kernels/layers/optimizer_steps.h
}

namespace tutti::nn {

/// Adam (or AdamW) fused with the reduction of the gradients: as soon as all ranks have an array's
/// gradient, each rank updates its share of the parameters from the mean that it has just computed,
/// and the others receive the new parameters; the mean itself is never stored. Where the ranks
/// share memory this divides the work and the moments by the number of ranks (stage 1 of ZeRO,
/// Rajbhandari et al. 2020). Parameters and gradients, f32, live in memory of the library.
class ShardedAdam {
 public:
  using Array = GradientArena::Array;
  /// Every rank makes the same one; the Communicator must outlive it. Throws
  /// Error(invalid_argument) for an array that is not f32.
  ShardedAdam(Communicator& communicator, std::vector<Array> arrays, const AdamOptions& options,
              bool decoupled = false);
  ~ShardedAdam();

  /// Zeroed at birth; fill it on one rank and broadcast().
  std::span<float> value(std::string_view name) const;
  std::span<float> gradient(std::string_view name) const;
  /// Rank `root`'s parameters to all.
  void broadcast(int root = 0);
  /// This rank needs neither the gradient nor the value of this array any more in this step. Any
  /// thread.
  void ready(std::string_view name) { arena_.ready(name); }
  /// Returns when all parameters are new on this rank. Throws as GradientArena::wait does.
  void step();
  int64_t steps() const;
  /// Everything but the values, whole, equal on all ranks: "first_moment.NAME" and
  /// "second_moment.NAME" of every array, and "steps", i64; copies, for checkpoints. Collective,
  /// between steps.
  std::vector<NamedState> state();
  /// Goes on from what state() gave on any number of ranks; every rank is given all of it, and
  /// has memory for all of it until the next step has shown which share is its own. Throws
  /// Error(invalid_argument) that names what is missing or has another size; then nothing was
  /// changed.
  void restore(const std::vector<NamedState>& state);
  /// Between steps.
  void set_learning_rate(double learning_rate);

 private:
  static void apply(void* self, int64_t offset, int64_t count, const std::byte* reduced);

  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  // Zeroed by the system where they are touched, which is the own share.
  using Moments = std::unique_ptr<float[], Free>;

  float* moments_of(const Moments& moments, const std::string& name) const;
  void forget_others_shares();

  std::unique_ptr<AdamSettings> settings_;
  Communicator& communicator_;
  std::vector<std::string> names_;
  Moments first_, second_;
  bool finds_share_ = false;  // in the first step after restore()
  std::mutex mutex_;
  std::vector<ElementRange> share_;  // of all moments, guarded by mutex_
  GradientArena arena_;              // last: its end waits for updates on their way
};

}  // namespace tutti::nn
