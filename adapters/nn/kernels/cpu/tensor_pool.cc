#include "tutti/adapters/nn/kernels/cpu/tensor_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "tutti/base/error.h"

namespace tutti {
namespace {

// Smaller blocks come from the C library's allocator, which caches them itself.
constexpr size_t kLeastBytes = 32 << 10;
constexpr size_t kAlignment = 4096;

}  // namespace

TensorPool::~TensorPool() {
  for (const auto& [bytes, memory] : unused_) std::free(memory);
}

size_t TensorPool::unused_bytes() const {
  const std::lock_guard lock(mutex_);
  return unused_bytes_;
}

Tensor TensorPool::make(const Shape& shape, DataType dtype) {
  const auto bytes = static_cast<size_t>(shape.count() * size_of(dtype));
  if (bytes < kLeastBytes) return Tensor(shape, dtype);
  const auto block = take((bytes + kAlignment - 1) / kAlignment * kAlignment);
  return {TensorView(block.memory, shape, dtype),
          std::shared_ptr<void>(
              block.memory, [pool = shared_from_this(), block](void*) { pool->give_back(block); })};
}

// Takes the smallest block that is large enough, unless more than an eighth of it would be unused.
TensorPool::Block TensorPool::take(size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    Block block{nullptr, bytes};
    const auto found = unused_.lower_bound(bytes);
    if (found != unused_.end() && found->first <= bytes + bytes / 8) {
      block = {found->second, found->first};
      unused_bytes_ -= block.bytes;
      unused_.erase(found);
    }
    used_bytes_ += block.bytes;
    most_used_bytes_ = std::max(most_used_bytes_, used_bytes_);
    if (block.memory) return block;
  }
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(kAlignment, bytes));
  if (!memory) {
    const std::lock_guard lock(mutex_);
    used_bytes_ -= bytes;
    throw Error(ErrorCode::out_of_memory, fmt::format("cannot allocate {} bytes on cpu", bytes));
  }
  return {memory, bytes};
}

void TensorPool::give_back(Block block) {
  const std::lock_guard lock(mutex_);
  used_bytes_ -= block.bytes;
  unused_.emplace(block.bytes, block.memory);
  unused_bytes_ += block.bytes;
  // Blocks of sizes that are no longer requested accumulate, so the largest are freed first.
  while (unused_bytes_ > most_used_bytes_) {
    const auto last = std::prev(unused_.end());
    unused_bytes_ -= last->first;
    std::free(last->second);
    unused_.erase(last);
  }
}

}  // namespace tutti
