#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/adapters/sharded/placed_tensor.h"
#include "tutti/core/communicator.h"

namespace tutti {

/// Says what the ranks divide among themselves, and how (ZeRO, Rajbhandari et al. 2020).
struct ShardedOptions {
  /// Selects the stage: 1 divides the optimizer's state, 2 also the gradients, 3 also the
  /// parameters.
  int stage = 1;
  ReduceOp op = ReduceOp::average;              // or sum, see DistributedOptions::op
  std::optional<DataType> wire = std::nullopt;  // dtype in which gradients are sent
  /// Stage 3: number of parameters that are gathered before they are needed.
  int ahead = 1;
  /// If true, all ranks begin with rank 0's parameters.
  bool broadcast_first = true;
};

/// This rank's part of a parameter: a range of the flat value and of the reduced gradient.
struct Shard {
  std::string name;
  Tensor value;
  Tensor gradient;
};

/// Bytes of parameters and gradients that this rank holds, both whole ones and shards.
struct ShardedMemory {
  int64_t values = 0;
  int64_t gradients = 0;
};

/// Parameters of which each rank updates a part. reduce_scatter turns gradients into shards of
/// their sum or mean, and allgather makes the values whole again. The memory that a stage divides
/// is returned to the system but keeps its address, so that a trainer's pointers stay valid. The
/// memory reads as zeros until it is gathered. Until then the library's calls refuse divided
/// values. One thread steps and makes these calls; any thread may announce gradients.
class ShardedParameters {
 public:
  /// A parameter of the trainer, f32 or f64 in host memory, row-major.
  struct Whole {
    std::string name;
    TensorView value;
    TensorView gradient;
  };
  /// Throws Error(invalid_argument) for an invalid stage and for parameters of other types, and
  /// Error(mismatch) if the ranks' settings differ.
  ShardedParameters(Communicator& comm, std::vector<Whole> parameters,
                    const ShardedOptions& options);
  /// Waits for the operations under way and gathers nothing. Parameters that stage 3 has divided
  /// stay divided and are lost, unless the state was saved or need_all() was called before.
  ~ShardedParameters();
  ShardedParameters(const ShardedParameters&) = delete;
  ShardedParameters& operator=(const ShardedParameters&) = delete;

  std::vector<Shard> shards() const;  // share memory with this object
  Placement placement_of(std::string_view name) const;

  /// Announces that the gradient is final for this step, and starts its reduction. Throws
  /// Error(invalid_argument) if it is called twice in a step.
  void gradient_ready(std::string_view name);
  /// Waits until every shard's gradient is reduced over all ranks. First it starts the reductions
  /// of the gradients that were not announced.
  void wait_for_gradients();
  /// Publishes the shards' new values. In stages 1 and 2 all ranks gather them; in stage 3 values
  /// that were whole are divided again. The next step begins.
  void publish();
  /// Sets the trainer's gradients to zero, except those that are zero already.
  void zero_gradients();

  /// Stage 3: makes the whole value available until done(). It also starts to gather some of the
  /// parameters that followed this one in the last step. All ranks must need parameters in the same
  /// order. In other stages this does nothing.
  void need(std::string_view name);
  void done(std::string_view name);
  /// Stage 3: makes all parameters whole until the next publish(), even if done() is called for
  /// some. A test or an export needs this.
  void need_all();

  /// Returns an object that owns the marks of the values that are divided now. While the caller
  /// keeps it, the library's calls refuse these values, even after ShardedParameters has ended.
  std::shared_ptr<const void> take_absent();

  ShardedMemory memory() const;       // held now
  ShardedMemory peak_memory() const;  // the maxima of both fields in the last step that ended

 private:
  struct Slot;
  Slot& slot_of(std::string_view name);
  void check(const std::vector<Whole>& parameters) const;
  void set_out(Slot& slot);
  void collect(Slot& slot);
  void start_gather(Slot& slot);
  void finish_gather(Slot& slot);
  void forget_value(Slot& slot);
  void prefetch();
  void hold_value(Slot& slot, bool holds);
  void hold_gradient(Slot& slot, bool holds);

  Communicator& comm_;
  const ShardedOptions options_;
  std::vector<Slot> slots_;
  std::map<std::string, size_t, std::less<>> index_;
  mutable std::mutex mutex_;                    // guards what gradient_ready changes in the slots
  bool all_are_needed_ = false;                 // need_all() was called since the last publish()
  std::vector<size_t> needed_before_, needed_;  // indices in the order of need(): in the last step,
                                                // and so far in this step
  // Guarded by mutex_. most_ is the most in this step, most_before_ the most in the last.
  ShardedMemory held_, most_, most_before_;
};

}  // namespace tutti
