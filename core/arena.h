#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tutti/base/process/fork_guard.h"
#include "tutti/core/communicator.h"

namespace tutti {

class Region;
struct FusedUpdate;
class WorkState;

/// Gradient arrays that live in one block of the library's memory, for a trainer that keeps no
/// arrays of its own. Where the ranks share memory each of them reduces its part of every array
/// straight in the arenas of all: nothing is packed or copied. Arrays are reduced as they are
/// declared ready, small ones together; the order is free. Every rank makes the same arenas in the
/// same order. The Communicator must outlive them. ready() may be called from any
/// thread; the arrays of a step must not be written between ready() and wait().
class GradientArena {
 public:
  /// What the caller says of one array.
  struct Array {
    std::string name;                // matched over the ranks
    Shape shape;                     // extents
    DataType dtype = DataType::f32;  // of its elements
    Device device{};                 // where it lives, as all arrays of the arena do
    std::vector<int64_t> strides{};  // in elements, one a dimension, of any order of dimensions (as
                                     // channels_last); empty: row-major
    bool may_be_left_out = false;    // see leave_out()
  };
  /// On a device the backend must work on its memory (peer, nccl), and no array may be left out.
  /// Throws Error(invalid_argument) for a name given twice, a device where the backend does not
  /// work, or two, strides that leave gaps or overlap, and an array that may be left out of an op
  /// other than sum and average.
  GradientArena(Communicator& communicator, std::vector<Array> arrays,
                const ReduceOptions& options = {});
  /// An arena whose results are not kept but used: every array has a twin of the same place and
  /// size (value()), and `apply`, called from whichever thread drives, brings elements from byte
  /// `offset` of the twins on up to date from their `reduced` gradients. Where the ranks share
  /// memory, each does so for its share of every array and the others receive the result; elsewhere
  /// each does it all. Calls of one step never overlap in elements. An array may be declared ready
  /// when neither its gradient nor its twin is needed any more in this step; none can be left out.
  using Apply = void (*)(void* self, int64_t offset, int64_t count, const std::byte* reduced);
  /// See Apply; `self` is handed to it.
  GradientArena(Communicator& communicator, std::vector<Array> arrays, const ReduceOptions& options,
                Apply apply, void* self);
  /// Waits for what is on its way, because it works in this memory. A fork of the process may
  /// destroy it and nothing happens; but the memory is one, so what a fork writes into an array the
  /// parent reads there.
  ~GradientArena();
  GradientArena(const GradientArena&) = delete;
  GradientArena& operator=(const GradientArena&) = delete;

  /// The array's memory, zeroed at birth, 64-byte aligned, with its shape and strides (which are
  /// the arena's, as the memory). Throws for a name that is not there, offering the nearest one.
  TensorView operator[](std::string_view name) const;
  /// Its twin, in an arena that updates.
  TensorView value(std::string_view name) const;
  /// The whole of the twins, and of the arrays: what offsets count from.
  std::byte* values() const;
  int64_t bytes() const;  // of the arrays, with what lies between them
  /// This rank's gradient is complete, on a device once `stream` comes to where it is now: starts
  /// its reduction. Throws Error(duplicate_name) if it was declared ready already in this step.
  void ready(std::string_view name, StreamRef stream = {});
  /// This rank has no gradient of this array in this step, as a branch of the model was not taken:
  /// instead of ready(). Others may have one, so the array is filled with zeros and takes part with
  /// them: an average still divides by all ranks, and all ranks get one result. Throws
  /// Error(invalid_argument) for an array that was not described as one that may be left out.
  void leave_out(std::string_view name);
  /// Every array holds the mean over all ranks (or what the options say) and a new step begins. If
  /// an array was not declared ready: Error(invalid_argument) that names it; the step stays open,
  /// so that it can still be declared.
  void wait();
  /// The same, but when `deadline` comes first throws Error(timeout) that names a tensor which is
  /// on its way; the step stays open, and may be waited for again.
  void wait(Deadline deadline);
  /// Whether an array was declared since the last wait() that ended.
  bool step_begun() const;
  /// Whether any rank had a gradient of this array in the last step that wait() ended. What all
  /// left out holds zeros; an optimizer with momentum or weight decay passes over it.
  bool used(std::string_view name) const;

 private:
  /// What each step touches comes first, in the one cache line that a ready() fetches.
  struct alignas(64) Slot {
    std::string name;
    uint32_t block = 0;
    uint32_t follower = 0;  // the array that was declared ready after this one in the last step
    uint32_t step = 0;      // the last one in which it was declared ready or left out
    int32_t flag = -1;      // place in the flags; -1: it may not be left out
    bool used = true;
    TensorView view;
    std::vector<int64_t> strides;  // of the view, unless it is row-major
  };
  /// Neighbours that are reduced together: one array, or several small ones.
  struct Block {
    std::unique_ptr<DeclaredTensor> declared;
    TensorView view;
    int arrays = 0;
    int missing = 0;        // of these, in this step
    StreamRef stream = {};  // of a device: where those that came are complete
    bool submitted = false;
  };
  void check_device(const std::vector<Array>& arrays, bool updates);
  void make_blocks(bool shared);
  /// On a device; with mutex_ held.
  void follow(Block& block, StreamRef stream);
  void flush_there();
  void wait_there(Deadline deadline);
  void begin_step();
  Block& add_block(const std::string& name, const TensorView& view, uint64_t layout, bool shared);
  static uint64_t digest(const Slot& slot, uint64_t before);
  /// Of the array that is ready (or left out) now; with mutex_ held.
  void count_in(size_t index);
  void check_not_forked(std::string_view name) const;
  size_t look_up(std::string_view name) const;
  /// The same for the next array of a step; with mutex_ held.
  size_t look_up_next(std::string_view name);
  /// Hands over the complete blocks that were not handed over; with mutex_ held.
  void flush(bool ring);

  /// Arrays smaller than this share a block.
  static constexpr int64_t kBlockBytes = 256 << 10;

  Communicator& communicator_;
  const ReduceOptions options_;
  Device device_;  // constant after construction
  std::string name_;
  const ForkGuard fork_guard_;
  OwnedWhereMade<Region> region_, twins_;
  std::unique_ptr<FusedUpdate> update_;
  int64_t number_ = 0;
  std::vector<Slot> slots_;
  std::unordered_map<std::string_view, size_t> index_;
  // One for each array that may be left out: 1 where this rank has it, and after wait() where any
  // rank had it. Reduced as a block of its own, the last one, with the last array of a step.
  TensorView flags_;
  mutable std::mutex mutex_;  // guards the following, and what changes in slots and blocks
  std::vector<Block> blocks_;
  std::vector<Work> works_there_;    // of the step, on a device
  std::shared_ptr<WorkState> work_;  // of the step
  std::shared_ptr<WorkState> last_work_;
  uint32_t step_ = 1;  // the number of the step that is open
  bool step_begun_ = false;
  std::vector<size_t> complete_;  // blocks that are not handed over
  size_t last_ = 0;               // the array that was declared ready last
  size_t ready_ = 0;
};

}  // namespace tutti
