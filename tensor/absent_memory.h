#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "tutti/tensor/tensor.h"

namespace tutti {

/// Marks a tensor's host memory as absent during the life of this object: the library has returned
/// the memory to the system, and it reads as zeros. Every function of the library that takes a
/// tensor calls require_present(), so that the library neither sends nor saves those zeros. Marks
/// apply to the whole process, like the memory. Any thread may use them.
class AbsentMemory {
 public:
  AbsentMemory() = default;
  explicit AbsentMemory(const TensorView& tensor);
  ~AbsentMemory() { release(); }
  AbsentMemory(AbsentMemory&& other) noexcept : begin_(other.begin_) { other.begin_ = 0; }
  AbsentMemory& operator=(AbsentMemory&& other) noexcept;

  /// Returns whether any memory is absent. This is never the case in a process that shards nothing.
  static bool any() { return count_.load(std::memory_order_relaxed) != 0; }

 private:
  void release() noexcept;

  static std::atomic<int> count_;
  uintptr_t begin_ = 0;  // 0 if this object marks nothing
};

/// Returns whether any of the tensor's elements are absent.
bool is_absent(const TensorView& tensor);
/// Throws Error(invalid_argument) that names the tensor if any of its elements are absent.
void refuse_absent(std::string_view name, const TensorView& tensor);
inline void require_present(std::string_view name, const TensorView& tensor) {
  if (AbsentMemory::any()) refuse_absent(name, tensor);
}

}  // namespace tutti
