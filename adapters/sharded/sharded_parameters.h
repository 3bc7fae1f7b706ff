#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/adapters/sharded/placed_tensor.h"
#include "tutti/core/communicator.h"
#include "tutti/tensor/absent_memory.h"

namespace tutti {

/// What ranks divide among themselves, and how (ZeRO, Rajbhandari et al. 2020).
struct ShardedOptions {
  /// 1: the optimizer's state; 2: gradients too; 3: the parameters too.
  int stage = 1;
  ReduceOp op = ReduceOp::average;              // or sum, see DistributedOptions::op
  std::optional<DataType> wire = std::nullopt;  // in which gradients travel
  /// Stage 3: so many parameters are gathered before they are needed.
  int ahead = 1;
  /// All ranks begin with rank 0's parameters.
  bool broadcast_first = true;
};

/// This rank's part of a parameter: elements of the flat value, and of the reduced gradient.
struct Shard {
  std::string name;
  Tensor value;
  Tensor gradient;
};

/// Bytes that this rank holds of parameters and gradients: whole ones, and its shards.
struct ShardedMemory {
  int64_t values = 0;
  int64_t gradients = 0;
};

/// Parameters of which each rank updates a part: gradients become shards of their sum or mean by
/// reduce_scatter, values become whole by allgather. What a stage divides is given back to the
/// system where it lies, so that a trainer keeps its pointers: it reads as zeros until it is
/// gathered. Divided values are AbsentMemory until then, which the library's calls refuse. One
/// thread steps and makes these calls; any thread may announce gradients.
class ShardedParameters {
 public:
  /// A parameter of the trainer, f32 or f64 in host memory, row-major.
  struct Whole {
    std::string name;
    TensorView value;
    TensorView gradient;
  };
  /// Throws Error(invalid_argument) for a stage that is none, and for parameters of other types;
  /// Error(mismatch) where ranks have other settings.
  ShardedParameters(Communicator& comm, std::vector<Whole> parameters,
                    const ShardedOptions& options);
  /// Waits for the operations under way and gathers nothing. Parameters that stage 3 has divided
  /// stay divided and are lost, unless the state was saved or need_all() was called before.
  ~ShardedParameters();
  ShardedParameters(const ShardedParameters&) = delete;
  ShardedParameters& operator=(const ShardedParameters&) = delete;

  std::vector<Shard> shards() const;  // share the memory
  Placement placement_of(std::string_view name) const;

  /// The gradient is final for this step: it sets out. Throws Error(invalid_argument) for the
  /// second time in a step.
  void gradient_ready(std::string_view name);
  /// Until every shard's gradient is that of all ranks. Those that were not announced set out.
  void wait_for_gradients();
  /// The shards' values are new: from stage 1 and 2 everybody gets them; in stage 3 what was whole
  /// is not any more. The next step begins.
  void publish();
  /// Gradients of the trainer to zero, as far as they are not.
  void zero_gradients();

  /// Stage 3: the whole value is there until done(); also of the parameters that were needed next
  /// in the last step some set out. All ranks need them in one order. Other stages: nothing.
  void need(std::string_view name);
  void done(std::string_view name);
  /// Stage 3: makes all parameters whole until the next publish(), even if done() is called for
  /// some. A test or an export needs this.
  void need_all();

  /// Hands over the marks of the values that are divided now. The caller keeps them absent after
  /// this object has ended.
  std::vector<AbsentMemory> take_absent();

  ShardedMemory memory() const;       // held now
  ShardedMemory peak_memory() const;  // the most of each in the last step that ended

 private:
  struct Slot {
    Whole whole;
    Placement placement;
    Shard shard;
    Work reducing, gathering;
    int gathers = 0;            // in this step
    bool is_announced = false;  // likewise
    bool is_whole = true;       // its value
    bool holds_value = true;    // whole, in the trainer's memory, or on its way there
    bool has_gradient = true;   // the same of the gradient
    AbsentMemory absent;        // unless it holds the value
  };
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
  bool all_are_needed_ = false;                 // until the next publish()
  std::vector<size_t> needed_before_, needed_;  // in the last step, and in this one so far
  ShardedMemory held_, most_, most_before_;     // guarded by mutex_; most in this step and the last
};

}  // namespace tutti
