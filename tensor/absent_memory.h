#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "tutti/tensor/tensor.h"

namespace tutti {

/// While this object lives, it marks a tensor's host memory as absent: the library has given the
/// memory back to the system, and it reads as zeros. Every function of the library that takes a
/// tensor calls require_present(), so that the library neither sends nor saves those zeros. The
/// marks hold for the whole process, like the memory. Any thread.
class AbsentMemory {
 public:
  AbsentMemory() = default;
  explicit AbsentMemory(const TensorView& tensor);
  ~AbsentMemory() { release(); }
  AbsentMemory(AbsentMemory&& other) noexcept : begin_(other.begin_) { other.begin_ = 0; }
  AbsentMemory& operator=(AbsentMemory&& other) noexcept;

  /// Whether any memory is absent. In a process that divides nothing it never is.
  static bool any() { return count_.load(std::memory_order_relaxed) != 0; }

 private:
  void release() noexcept;

  static std::atomic<int> count_;
  uintptr_t begin_ = 0;  // 0: none
};

/// Whether any of the tensor's elements are absent.
bool is_absent(const TensorView& tensor);
/// Throws Error(invalid_argument) that names the tensor where any of its elements are absent.
void refuse_absent(std::string_view name, const TensorView& tensor);
inline void require_present(std::string_view name, const TensorView& tensor) {
  if (AbsentMemory::any()) refuse_absent(name, tensor);
}

}  // namespace tutti
