#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tutti/core/communicator.h"

namespace tutti {

class Region;
class WorkState;

/// Gradient arrays that live in one block of the library's memory, for a trainer that keeps no
/// arrays of its own. Where the ranks share memory each of them reduces its part of every array
/// straight in the arenas of all: nothing is packed or copied. Arrays are reduced as they are
/// declared ready, small ones together; the order is free. Every rank makes the same arenas in the
/// same order. The Communicator must outlive them. ready() may be called from any
/// thread; the arrays of a step must not be written between ready() and wait().
class GradientArena {
 public:
  struct Array {
    std::string name;
    int64_t count = 0;  // elements
    DataType dtype = DataType::f32;
  };
  /// Throws Error(invalid_argument) for a name given twice or a negative count.
  GradientArena(Communicator& communicator, std::vector<Array> arrays,
                const ReduceOptions& options = {});
  /// Waits for what is on its way, because it works in this memory.
  ~GradientArena();
  GradientArena(const GradientArena&) = delete;
  GradientArena& operator=(const GradientArena&) = delete;

  /// The array's memory, zeroed at birth, 64-byte aligned. Throws for a name that is not there,
  /// offering the nearest one.
  TensorView operator[](std::string_view name) const;
  /// This rank's gradient is complete: starts its reduction. Throws Error(duplicate_name) if it was
  /// declared ready already in this step.
  void ready(std::string_view name);
  /// Every array holds the mean over all ranks (or what the options say) and a new step begins. If
  /// an array was not declared ready: Error(invalid_argument) that names it; the step stays open,
  /// so that it can still be declared.
  void wait();

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  struct Slot {
    TensorView view;
    DeclaredTensor* declared = nullptr;
    bool ready = false;
    bool submitted = false;
  };
  Slot& find(std::string_view name);
  /// Hands over what is ready and was not handed over; with mutex_ held.
  void flush(bool ring);

  /// So many bytes are handed over at once.
  static constexpr int64_t kFlushBytes = 256 << 10;

  Communicator& communicator_;
  const ReduceOptions options_;
  std::string name_;
  std::unique_ptr<Region> region_;
  std::vector<Slot> slots_;
  std::unordered_map<std::string, size_t, Hash, std::equal_to<>> index_;
  std::mutex mutex_;                 // guards the following, and the flags of the slots
  std::shared_ptr<WorkState> work_;  // of the step
  bool step_begun_ = false;
  std::vector<size_t> unsubmitted_;  // ready
  int64_t unsubmitted_bytes_ = 0;
  size_t ready_ = 0;
};

}  // namespace tutti
