#include "tutti/core/engine/host_pool.h"

#include <algorithm>
#include <vector>

namespace tutti {

namespace {

constexpr size_t kGrain = 4096;

}  // namespace

HostPool::~HostPool() {
  if (fork_guard_.forked()) return;
  for (const auto& [size, memory] : free_) runtime_.free_host(memory);
}

std::shared_ptr<void> HostPool::take(size_t bytes) {
  size_t size = std::max<size_t>(1, (bytes + kGrain - 1) / kGrain) * kGrain;
  void* memory = find(size);
  if (memory == nullptr) memory = runtime_.allocate_host(size);
  return {memory, [pool = shared_from_this(), size](void* used) { pool->give_back(used, size); }};
}

// Returns a free block, or null, and counts `size` bytes as used. If it finds a block, it sets
// `size` to the block's length, which is at most twice the requested size. Frees blocks beyond the
// pool's bound.
void* HostPool::find(size_t& size) {
  void* memory = nullptr;
  std::vector<void*> too_much;
  {
    const std::lock_guard lock(mutex_);
    const auto found = free_.lower_bound(size);
    // A step requests the same sizes repeatedly. A block of more than twice the size is kept for a
    // larger tensor.
    if (found != free_.end() && found->first <= 2 * size) {
      size = found->first;
      memory = found->second;
      free_bytes_ -= size;
      free_.erase(found);
    }
    used_bytes_ += size;
    most_used_bytes_ = std::max(most_used_bytes_, used_bytes_);
    while (!free_.empty() && free_bytes_ + used_bytes_ > 2 * most_used_bytes_) {
      too_much.push_back(free_.begin()->second);
      free_bytes_ -= free_.begin()->first;
      free_.erase(free_.begin());
    }
  }
  for (void* one : too_much) runtime_.free_host(one);
  return memory;
}

void HostPool::give_back(void* memory, size_t size) {
  if (fork_guard_.forked()) return;
  const std::lock_guard lock(mutex_);
  free_.emplace(size, memory);
  free_bytes_ += size;
  used_bytes_ -= size;
}

}  // namespace tutti
