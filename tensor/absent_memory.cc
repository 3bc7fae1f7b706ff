#include "tutti/tensor/absent_memory.h"

#include <fmt/format.h>

#include <map>
#include <mutex>

#include "tutti/base/error.h"

namespace tutti {

namespace {

struct AbsentRanges {
  std::mutex mutex;
  std::map<uintptr_t, uintptr_t> ends;  // keyed by begin; ranges do not overlap
};

// Returns the ranges. They are never destroyed, so that they can be used while the process exits.
AbsentRanges& absent_ranges() {
  static auto* const kRanges = new AbsentRanges;
  return *kRanges;
}

uintptr_t address_of(const TensorView& tensor) {
  return reinterpret_cast<uintptr_t>(tensor.data());
}

}  // namespace

std::atomic<int> AbsentMemory::count_{0};

AbsentMemory::AbsentMemory(const TensorView& tensor) {
  if (tensor.bytes() == 0) return;
  auto& ranges = absent_ranges();
  const std::lock_guard lock(ranges.mutex);
  const auto begin = address_of(tensor);
  if (!ranges.ends.emplace(begin, begin + static_cast<uintptr_t>(tensor.bytes())).second) return;
  begin_ = begin;
  count_.fetch_add(1, std::memory_order_relaxed);
}

AbsentMemory& AbsentMemory::operator=(AbsentMemory&& other) noexcept {
  if (this == &other) return *this;
  release();
  begin_ = other.begin_;
  other.begin_ = 0;
  return *this;
}

void AbsentMemory::release() noexcept {
  if (begin_ == 0) return;
  auto& ranges = absent_ranges();
  const std::lock_guard lock(ranges.mutex);
  ranges.ends.erase(begin_);
  begin_ = 0;
  count_.fetch_sub(1, std::memory_order_relaxed);
}

bool is_absent(const TensorView& tensor) {
  if (tensor.bytes() == 0 || tensor.device().kind != DeviceKind::cpu) return false;
  auto& ranges = absent_ranges();
  const std::lock_guard lock(ranges.mutex);
  const auto begin = address_of(tensor);
  const auto after = ranges.ends.lower_bound(begin + static_cast<uintptr_t>(tensor.bytes()));
  return after != ranges.ends.begin() && std::prev(after)->second > begin;
}

void refuse_absent(std::string_view name, const TensorView& tensor) {
  if (!is_absent(tensor)) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("\"{}\" {}{} is divided over the ranks: here it reads as zeros; call "
                          "need_all() of the sharded optimizer on every rank first, or take the "
                          "parts that its state() names",
                          name, to_string(tensor.dtype()), tensor.shape().to_string()))
      .with_tensor(name);
}

}  // namespace tutti
