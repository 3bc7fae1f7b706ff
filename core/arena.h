#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tutti/core/communicator.h"

namespace tutti {

/// Gradient arrays that live in one block of the library's memory, for a trainer that keeps no
/// arrays of its own. Each is reduced as soon as it is declared ready; the order is free. Every
/// rank makes the same arena. The Communicator must outlive it. ready() may be called from any
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
  struct Slot {
    std::string name;
    TensorView view;
    Work work;
  };
  Slot& find(std::string_view name);

  Communicator& communicator_;
  const ReduceOptions options_;
  Tensor memory_;
  std::vector<Slot> slots_;
  std::unordered_map<std::string, size_t> index_;
  std::mutex mutex_;  // guards the works in slots_
};

}  // namespace tutti
