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
struct AdamSettings;  // adapters/nn/kernels/optimizer_steps.h
}

namespace tutti::nn {

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
  /// state. It needs memory for all of it until the next step has shown which share is its own.
  /// Throws Error(invalid_argument), which names a tensor that is missing or has another size; then
  /// nothing was changed.
  void restore(const std::vector<NamedState>& state);
  /// Call it between steps.
  void set_learning_rate(double learning_rate);

 private:
  static void apply(void* self, int64_t offset, int64_t count, const std::byte* reduced);

  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  // The system zeroes this memory where it is touched, which is only this rank's share.
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
