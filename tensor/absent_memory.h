#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "tutti/tensor/tensor.h"

namespace tutti {

/// Host memory of a tensor that an object of the library has given back to the system, so that it
/// reads as zeros, as long as this says so. Whatever of the library takes a tensor asks
/// require_present(), and thus neither sends nor saves those zeros. Like the memory itself it is
/// known to the whole process. Any thread.
class AbsentMemory {
 public:
  AbsentMemory() = default;
  explicit AbsentMemory(const TensorView& tensor);
  ~AbsentMemory() { release(); }
  AbsentMemory(AbsentMemory&& other) noexcept : begin_(other.begin_) { other.begin_ = 0; }
  AbsentMemory& operator=(AbsentMemory&& other) noexcept;

  /// Whether there are any; not in a process that divides nothing.
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
