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

/// Gradient arrays in one block of the library's memory, for a trainer that keeps no arrays of its
/// own. If the ranks share memory, each of them reduces its part of every array directly in the
/// arenas of all, and nothing is packed or copied. Arrays are reduced as they are declared ready,
/// in any order, small ones together. Every rank makes the same arenas in the same order. The
/// Communicator must outlive them. Any thread may call ready(). The arrays of a step must not be
/// written between ready() and wait().
class GradientArena {
 public:
  /// The description of one array.
  struct Array {
    std::string name;                // matched over the ranks
    Shape shape;                     // extents
    DataType dtype = DataType::f32;  // of its elements
    Device device{};                 // where it is; all arrays of an arena are on one device
    // In elements, one per dimension, for any order of dimensions (as channels_last). Empty:
    // row-major.
    std::vector<int64_t> strides{};
    bool may_be_left_out = false;  // see leave_out()
  };
  /// On a device the backend must work on the device's memory (peer, nccl), and no array may be
  /// left out. Throws Error(invalid_argument) if a name is given twice, if arrays are on two
  /// devices or where the backend does not work, or if strides leave gaps or overlap. It also
  /// throws if an array may be left out and the op is neither sum nor average.
  GradientArena(Communicator& communicator, std::vector<Array> arrays,
                const ReduceOptions& options = {});
  /// The function of an arena that applies its results instead of keeping them. Every array has a
  /// twin of the same offset and size (value()). The driving thread calls the function, which
  /// updates `count` elements of the twins from byte `offset` on with their `reduced` gradients. If
  /// the ranks share memory, each rank does so for its share of every array, and the others receive
  /// the updated elements. Otherwise each rank does it for all elements. Calls of one step never
  /// overlap in elements. An array may be declared ready when neither its gradient nor its twin is
  /// needed any more in this step. No array can be left out.
  using Apply = void (*)(void* self, int64_t offset, int64_t count, const std::byte* reduced);
  /// See Apply; it gets `self`.
  GradientArena(Communicator& communicator, std::vector<Array> arrays, const ReduceOptions& options,
                Apply apply, void* self);
  /// Waits for pending operations, because they use this memory. In a fork of the process the
  /// destructor does nothing. The memory is shared, however, so the parent reads what a fork writes
  /// into an array.
  ~GradientArena();
  GradientArena(const GradientArena&) = delete;
  GradientArena& operator=(const GradientArena&) = delete;

  /// Returns the array's memory with its shape and strides (which belong to the arena, as the
  /// memory does). It is zeroed at first and 64-byte aligned. Throws for an unknown name, offering
  /// the nearest one.
  TensorView operator[](std::string_view name) const;
  /// Returns its twin, in an arena that updates.
  TensorView value(std::string_view name) const;
  /// The beginning of all twins, from which offsets count.
  std::byte* values() const;
  int64_t bytes() const;  // of the arrays, with the padding between them
  /// Declares that this rank's gradient is complete (on a device: once `stream` has reached its
  /// current point), and starts its reduction. Throws Error(duplicate_name) if it was declared
  /// ready already in this step.
  void ready(std::string_view name, StreamRef stream = {});
  /// Replaces ready() if this rank has no gradient of this array in this step, because a branch of
  /// the model was not taken. Other ranks may have one, so the array takes part with zeros: an
  /// average still divides by all ranks, and all ranks get one result. Throws
  /// Error(invalid_argument) for an array whose description does not set may_be_left_out.
  void leave_out(std::string_view name);
  /// Waits until every array holds the mean over all ranks (or what the options say) and begins a
  /// new step. Throws Error(invalid_argument) for an array that was not declared ready. The step
  /// then stays open, so that the array can still be declared.
  void wait();
  /// Does the same, but throws Error(timeout) if `deadline` passes first, naming a tensor that is
  /// still pending. The step then stays open and may be waited for again.
  void wait(Deadline deadline);
  /// Returns whether an array was declared since the last wait() that ended.
  bool step_begun() const;
  /// Returns whether any rank had a gradient of this array in the last step that wait() ended. An
  /// array that all ranks left out holds zeros; an optimizer with momentum or weight decay skips
  /// it.
  bool used(std::string_view name) const;

 private:
  /// The members that each step touches come first, in the one cache line that a ready() fetches.
  struct alignas(64) Slot {
    std::string name;
    uint32_t block = 0;
    uint32_t follower = 0;  // the array that was declared ready after this one in the last step
    uint32_t step = 0;      // last step in which it was declared ready or left out
    int32_t flag = -1;      // index in flags_; -1: it may not be left out
    bool used = true;
    TensorView view;
    std::vector<int64_t> strides;  // of the view, unless it is row-major
  };
  /// Adjacent arrays that are reduced together: one array, or several small ones.
  struct Block {
    std::unique_ptr<DeclaredTensor> declared;
    TensorView view;
    int arrays = 0;
    int missing = 0;        // of these, not declared yet in this step
    StreamRef stream = {};  // on a device: where the declared arrays are complete
    bool submitted = false;
  };
  void check_device(const std::vector<Array>& arrays, bool updates);
  void make_blocks(bool shared);
  /// Used on a device, with mutex_ held.
  void follow(Block& block, StreamRef stream);
  void flush_there();
  void wait_there(Deadline deadline);
  void begin_step();
  Block& add_block(const std::string& name, const TensorView& view, uint64_t layout, bool shared);
  static uint64_t digest(const Slot& slot, uint64_t before);
  /// Counts an array that is ready (or left out) now. With mutex_ held.
  void count_in(size_t index);
  void check_not_forked(std::string_view name) const;
  size_t look_up(std::string_view name) const;
  /// Does the same for the next array of a step. With mutex_ held.
  size_t look_up_next(std::string_view name);
  /// Submits the complete blocks that were not submitted yet. With mutex_ held.
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
  // One flag per array that may be left out: 1 if this rank has it, and after wait() 1 if any rank
  // had it. The flags are reduced as a block of their own, the last one, with the last array of a
  // step.
  TensorView flags_;
  mutable std::mutex mutex_;  // guards the following, and what changes in slots and blocks
  std::vector<Block> blocks_;
  std::vector<Work> works_there_;    // of the step, on a device
  std::shared_ptr<WorkState> work_;  // of the step
  std::shared_ptr<WorkState> last_work_;
  uint32_t step_ = 1;  // the number of the step that is open
  bool step_begun_ = false;
  std::vector<size_t> complete_;  // complete blocks that are not submitted
  size_t last_ = 0;               // the array that was declared ready last
  size_t ready_ = 0;
};

}  // namespace tutti
