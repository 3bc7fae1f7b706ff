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
/// own. If the ranks share memory, each rank reduces its part of every array directly in the arenas
/// of all ranks, and nothing is packed or copied. Arrays are reduced as they are declared ready, in
/// any order; small arrays are reduced together. Every rank must make the same arenas in the same
/// order. The Communicator must outlive them. Any thread may call ready(). The arrays of a step
/// must not be written between ready() and wait().
class GradientArena {
 public:
  /// The description of one array.
  struct Array {
    std::string name;                // the key by which the ranks match the array
    Shape shape;                     // extents
    DataType dtype = DataType::f32;  // dtype of the elements
    Device device{};  // where the array is; all arrays of an arena must be on the same device
    // Strides in elements, one per dimension. The dimensions may be stored in any order, as in
    // channels_last. Empty: row-major.
    std::vector<int64_t> strides{};
    bool may_be_left_out = false;  // see leave_out()
  };
  /// If the arrays are on a device, the backend must work on that device's memory (as peer and nccl
  /// do), and no array may be left out. Throws Error(invalid_argument) if two arrays have the same
  /// name, if arrays are on two devices, if the backend does not work on their device, or if
  /// strides leave gaps or overlap. It also throws if an array may be left out and the op is
  /// neither sum nor average.
  GradientArena(Communicator& communicator, std::vector<Array> arrays,
                const ReduceOptions& options = {});
  /// A function that applies the reduced gradients instead of keeping them. Every array then has a
  /// twin, an array of the same offset and size that holds the values to update (see value()). The
  /// thread that runs the engine calls the function. It updates `count` elements of the twins,
  /// starting at byte `offset`, with their `reduced` gradients. If the ranks share memory, each
  /// rank updates its share of every array, and the other ranks receive the updated elements.
  /// Otherwise each rank updates all elements. Within one step, no element is passed to the
  /// function twice. An array may be declared ready once this step needs neither its gradient nor
  /// its twin any more. No array can be left out.
  using Apply = void (*)(void* self, int64_t offset, int64_t count, const std::byte* reduced);
  /// Makes an arena that passes its results to `apply` with the argument `self`; see Apply.
  GradientArena(Communicator& communicator, std::vector<Array> arrays, const ReduceOptions& options,
                Apply apply, void* self);
  /// Waits for pending operations, because they use this memory. In a forked child the destructor
  /// does nothing. The memory stays shared with the parent, so the parent reads what the child
  /// writes into an array.
  ~GradientArena();
  GradientArena(const GradientArena&) = delete;
  GradientArena& operator=(const GradientArena&) = delete;

  /// Returns the array's memory with its shape and strides. The arena owns all three. The memory is
  /// zeroed at first and 64-byte aligned. Throws for an unknown name, with the nearest known name
  /// in the text.
  TensorView operator[](std::string_view name) const;
  /// Returns the twin of the array `name`. Only an arena with an Apply has twins.
  TensorView value(std::string_view name) const;
  /// Returns the beginning of the twins' memory. The offsets that Apply gets count from here.
  std::byte* values() const;
  int64_t bytes() const;  // size of all arrays, including the padding between them
  /// Declares that this rank's gradient of the array is complete, and starts its reduction. On a
  /// device the gradient is complete once `stream` has done its current work. Throws
  /// Error(duplicate_name) if the array was already declared ready in this step.
  void ready(std::string_view name, StreamRef stream = {});
  /// Replaces ready() if this rank has no gradient of this array in this step, because a branch of
  /// the model was not taken. Other ranks may have one, so the array takes part with zeros: an
  /// average still divides by all ranks, and all ranks get one result. Throws
  /// Error(invalid_argument) for an array whose description does not set may_be_left_out.
  void leave_out(std::string_view name);
  /// Waits until every array holds the mean over all ranks (or the result that the options ask
  /// for). Then it begins a new step. Throws Error(invalid_argument) for an array that was not
  /// declared ready. The step then stays open, so that the array can still be declared.
  void wait();
  /// Waits like wait(), but throws Error(timeout) if `deadline` passes first. The error names a
  /// tensor that is still pending. The step then stays open, and the caller may wait for it again.
  void wait(Deadline deadline);
  /// Returns whether any array was declared ready since the last successful wait().
  bool step_begun() const;
  /// Returns whether any rank had a gradient of this array in the last step that wait() finished.
  /// An array that all ranks left out holds zeros. An optimizer with momentum or weight decay
  /// should skip it.
  bool used(std::string_view name) const;

 private:
  /// The members that each step touches come first, so that ready() loads only one cache line.
  struct alignas(64) Slot {
    std::string name;
    uint32_t block = 0;
    uint32_t follower = 0;  // the array that was declared ready after this one in the last step
    uint32_t step = 0;      // last step in which the array was declared ready or left out
    int32_t flag = -1;      // index in flags_; -1: the array may not be left out
    bool used = true;
    TensorView view;
    std::vector<int64_t> strides;  // strides of `view`; empty: row-major
  };
  /// Adjacent arrays that are reduced together: one array, or several small ones.
  struct Block {
    std::unique_ptr<DeclaredTensor> declared;
    TensorView view;
    int arrays = 0;
    int missing = 0;        // number of the block's arrays that are not declared yet in this step
    StreamRef stream = {};  // on a device: a stream on which the declared arrays are complete
    bool submitted = false;
  };
  void check_device(const std::vector<Array>& arrays, bool updates);
  void make_blocks(bool shared);
  /// Adds a device's stream to the block. Requires mutex_.
  void follow(Block& block, StreamRef stream);
  void flush_there();
  void wait_there(Deadline deadline);
  void begin_step();
  Block& add_block(const std::string& name, const TensorView& view, uint64_t layout, bool shared);
  static uint64_t digest(const Slot& slot, uint64_t before);
  /// Counts one more array as ready or left out in this step. Requires mutex_.
  void count_in(size_t index);
  void check_not_forked(std::string_view name) const;
  size_t look_up(std::string_view name) const;
  /// Looks up the next array of a step. Tries the array that came next in the last step first.
  /// Requires mutex_.
  size_t look_up_next(std::string_view name);
  /// Submits the complete blocks that were not submitted yet. Requires mutex_.
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
  // One flag per array that may be left out. It is 1 if this rank has the array; after wait() it is
  // 1 if any rank had it. The flags are the arena's last block, which is submitted after all other
  // arrays.
  TensorView flags_;
  mutable std::mutex mutex_;  // guards the members below, and the changing parts of slots_
  std::vector<Block> blocks_;
  std::vector<Work> works_there_;    // Works of the open step (arrays on a device)
  std::shared_ptr<WorkState> work_;  // Work of the open step (arrays in host memory)
  std::shared_ptr<WorkState> last_work_;
  uint32_t step_ = 1;  // the number of the step that is open
  bool step_begun_ = false;
  std::vector<size_t> complete_;  // complete blocks that are not submitted
  size_t last_ = 0;               // the array that was declared ready last
  size_t ready_ = 0;
};

}  // namespace tutti
