#include "tutti/kernels/cuda/device/memory_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "tutti/base/check.h"
#include "tutti/base/error.h"

namespace tutti::cuda {

namespace {

constexpr size_t kBlockBytes = 512;
constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kMostSmallBytes = kMiB;
constexpr size_t kSmallSegmentBytes = 2 * kMiB;
constexpr size_t kMostSharedBytes = 10 * kMiB;  // larger requests get their own segment
constexpr size_t kSharedSegmentBytes = 20 * kMiB;
constexpr size_t kSegmentStep = 2 * kMiB;

constexpr size_t round_up(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }

constexpr size_t usual_segment(size_t bytes) {
  if (bytes <= kMostSmallBytes) return kSmallSegmentBytes;
  if (bytes <= kMostSharedBytes) return kSharedSegmentBytes;
  return round_up(bytes, kSegmentStep);
}

// Returns the smallest remainder for which a block is split into two. With a smaller remainder the
// block stays whole.
constexpr size_t least_rest(bool is_small) { return is_small ? kBlockBytes : kMiB; }

}  // namespace

MemoryPool::MemoryPool(MemorySource& source, std::string name, size_t limit)
    : source_(source), name_(std::move(name)), limit_(limit) {}

MemoryPool::~MemoryPool() {
  for (const auto& [data, block] : blocks_) {
    for (const auto& use : block.uses) source_.destroy_event(use.event);
    if (data == block.segment) source_.release(data);
  }
  for (void* event : spare_events_) source_.destroy_event(event);
}

void* MemoryPool::allocate(size_t bytes, StreamRef stream) { return allocate(bytes, &stream); }
void* MemoryPool::allocate_idle(size_t bytes) { return allocate(bytes, nullptr); }

void* MemoryPool::allocate(size_t bytes, const StreamRef* stream) {
  if (bytes > std::numeric_limits<size_t>::max() - kSegmentStep) {
    const std::lock_guard lock(mutex_);
    fail(bytes);
  }
  const size_t size = round_up(std::max<size_t>(bytes, 1), kBlockBytes);
  void* event = stream != nullptr ? take_event() : nullptr;
  std::unique_lock lock(mutex_);
  try {
    void* memory = find_free(size, stream, event);
    if (memory == nullptr) memory = reserve(lock, size, stream, event);
    if (memory == nullptr && release_free(lock) > 0) memory = reserve(lock, size, stream, event);
    // Other threads may have freed memory while the lock was released.
    if (memory == nullptr) memory = find_free(size, stream, event);
    if (memory == nullptr && stream != nullptr) memory = find_waiting(size, *stream, event);
    if (memory == nullptr) fail(bytes);
    return memory;
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    if (event != nullptr) spare_events_.push_back(event);
    throw;
  }
}

void* MemoryPool::take_event() {
  {
    const std::lock_guard lock(mutex_);
    if (!spare_events_.empty()) {
      void* event = spare_events_.back();
      spare_events_.pop_back();
      return event;
    }
  }
  return source_.create_event();
}

void MemoryPool::use(void* memory, StreamRef stream) {
  void* event = take_event();
  const std::lock_guard lock(mutex_);
  const auto at = blocks_.find(static_cast<std::byte*>(memory));
  TUTTI_CHECK(at != blocks_.end() && !at->second.is_listed);
  auto& uses = at->second.uses;
  if (std::any_of(uses.begin(), uses.end(), [&](const Use& use) { return use.stream == stream; }))
    spare_events_.push_back(event);
  else
    uses.push_back({stream, event});
}

void MemoryPool::free(void* memory) {
  if (memory == nullptr) return;
  const std::lock_guard lock(mutex_);
  const auto at = blocks_.find(static_cast<std::byte*>(memory));
  TUTTI_CHECK(at != blocks_.end() && !at->second.is_listed);
  // A failed device may still access this memory, so it is never reused.
  for (auto& use : at->second.uses) {
    if (!source_.record(use.event, use.stream)) return;
    use.order = ++recorded_;
  }
  statistics_.allocated_bytes -= at->second.bytes;
  list(at);
}

size_t MemoryPool::release_free() {
  std::unique_lock lock(mutex_);
  drop_reached();
  return release_free(lock);
}

void MemoryPool::limit(size_t bytes) {
  const std::lock_guard lock(mutex_);
  limit_ = bytes;
}

DeviceMemoryStatistics MemoryPool::statistics() const {
  const std::lock_guard lock(mutex_);
  auto statistics = statistics_;
  statistics.largest_free_bytes = largest_free();
  return statistics;
}

// --- finding memory, all under the lock ----------------------------------------------------------

void* MemoryPool::find_free(size_t bytes, const StreamRef* stream, void* event) {
  const bool is_small = bytes <= kMostSmallBytes;
  const ListKey own{is_small, Users::one, stream != nullptr ? stream->native : nullptr};
  const ListKey idle{is_small, Users::none, nullptr};
  for (const bool again : {false, true}) {
    if (again) drop_reached();
    if (stream != nullptr)
      if (void* memory = find(bytes, own, stream, event)) return memory;
    if (void* memory = find(bytes, idle, stream, event)) return memory;
  }
  return nullptr;
}

void* MemoryPool::find(size_t bytes, ListKey key, const StreamRef* stream, void* event) {
  const auto list = free_.find(key);
  if (list == free_.end()) return nullptr;
  const auto fit = list->second.lower_bound({bytes, nullptr});
  if (fit == list->second.end()) return nullptr;
  return take(blocks_.find(fit->second), bytes, stream, event);
}

// Takes the smallest block that is large enough. Makes the stream wait on the device for all other
// streams that may still use the block.
void* MemoryPool::find_waiting(size_t bytes, StreamRef stream, void* event) {
  auto best = blocks_.end();
  for (auto at = blocks_.begin(); at != blocks_.end(); ++at) {
    const auto& block = at->second;
    if (block.is_listed && block.bytes >= bytes && block.is_small == (bytes <= kMostSmallBytes) &&
        (best == blocks_.end() || block.bytes < best->second.bytes))
      best = at;
  }
  if (best == blocks_.end()) return nullptr;
  for (const auto& use : best->second.uses)
    if (use.stream != stream) source_.wait(stream, use.event);
  ++statistics_.device_waits;
  return take(best, bytes, &stream, event);
}

// Reserves a new segment. The lock is released during the call of the driver, which may block until
// another thread frees memory.
void* MemoryPool::reserve(std::unique_lock<std::mutex>& lock, size_t bytes, const StreamRef* stream,
                          void* event) {
  const size_t least = round_up(bytes, kSegmentStep);
  for (size_t size = usual_segment(bytes);; size = least) {
    if (size <= limit_ && statistics_.reserved_bytes <= limit_ - size) {
      statistics_.reserved_bytes += size;  // counted now, so that no other thread exceeds the limit
      lock.unlock();
      void* segment = nullptr;
      try {
        segment = source_.reserve(size);
      } catch (...) {
        lock.lock();
        statistics_.reserved_bytes -= size;
        throw;
      }
      lock.lock();
      if (segment != nullptr) {
        auto* data = static_cast<std::byte*>(segment);
        const auto at = blocks_.emplace(data, Block{data, size, bytes <= kMostSmallBytes}).first;
        list(at);
        return take(at, bytes, stream, event);
      }
      statistics_.reserved_bytes -= size;
    }
    if (size == least) return nullptr;
  }
}

// Takes the block, or its first `bytes` bytes, for a stream. The stream must be ordered after all
// earlier uses of the block.
void* MemoryPool::take(Blocks::iterator at, size_t bytes, const StreamRef* stream, void* event) {
  unlist(at);
  auto& block = at->second;
  if (block.bytes - bytes >= least_rest(block.is_small)) {
    Block rest{block.segment, block.bytes - bytes, block.is_small, false, std::move(block.uses)};
    block.bytes = bytes;
    list(blocks_.emplace(at->first + bytes, std::move(rest)).first);
  } else {
    for (const auto& use : block.uses) spare_events_.push_back(use.event);
  }
  block.uses.clear();
  if (stream != nullptr) block.uses.push_back({*stream, event});
  statistics_.allocated_bytes += block.bytes;
  statistics_.most_allocated_bytes =
      std::max(statistics_.most_allocated_bytes, statistics_.allocated_bytes);
  return at->first;
}

size_t MemoryPool::release_free(std::unique_lock<std::mutex>& lock) {
  std::vector<std::byte*> segments;
  size_t bytes = 0;
  for (auto at = blocks_.begin(); at != blocks_.end();) {
    const auto next = std::next(at);
    const auto& block = at->second;
    const bool is_whole = at->first == block.segment &&
                          (next == blocks_.end() || next->second.segment != block.segment);
    if (is_whole && block.is_listed && block.uses.empty()) {
      unlist(at);
      segments.push_back(at->first);
      bytes += block.bytes;
      blocks_.erase(at);
    }
    at = next;
  }
  lock.unlock();
  for (auto* segment : segments) source_.release(segment);
  lock.lock();
  statistics_.reserved_bytes -= bytes;
  return bytes;
}

// --- free blocks ---------------------------------------------------------------------------------

MemoryPool::ListKey MemoryPool::key_of(const Block& block) {
  if (block.uses.empty()) return {block.is_small, Users::none, nullptr};
  if (block.uses.size() == 1) return {block.is_small, Users::one, block.uses[0].stream.native};
  return {block.is_small, Users::several, nullptr};
}

// Adds the block to its free list, joined with neighbours that the same stream may still use.
void MemoryPool::list(Blocks::iterator at) {
  const auto joins = [&](Blocks::iterator neighbour) {
    return neighbour->second.is_listed && neighbour->second.segment == at->second.segment &&
           key_of(neighbour->second) == key_of(at->second) && at->second.uses.size() <= 1;
  };
  if (const auto next = std::next(at); next != blocks_.end() && joins(next)) {
    unlist(next);
    join(at, next);
  }
  if (at != blocks_.begin() && joins(std::prev(at))) {
    const auto previous = std::prev(at);
    unlist(previous);
    join(previous, at);
    at = previous;
  }
  free_[key_of(at->second)].insert({at->second.bytes, at->first});
  at->second.is_listed = true;
}

// Both blocks' events belong to one stream, so the later event covers both.
void MemoryPool::join(Blocks::iterator first, Blocks::iterator second) {
  first->second.bytes += second->second.bytes;
  if (!first->second.uses.empty()) {
    auto &kept = first->second.uses[0], &other = second->second.uses[0];
    if (kept.order < other.order) std::swap(kept, other);
    spare_events_.push_back(other.event);
  }
  blocks_.erase(second);
}

void MemoryPool::unlist(Blocks::iterator at) {
  const auto found = free_.find(key_of(at->second));
  found->second.erase({at->second.bytes, at->first});
  if (found->second.empty()) free_.erase(found);
  at->second.is_listed = false;
}

void MemoryPool::drop_reached() {
  // All changed blocks first leave their free lists. When they return to the lists, neighbours with
  // the same pending uses are merged.
  std::vector<Blocks::iterator> changed;
  for (auto at = blocks_.begin(); at != blocks_.end(); ++at) {
    auto& [data, block] = *at;
    const auto is_reached = [&](const Use& use) { return source_.reached(use.event); };
    if (!block.is_listed || std::none_of(block.uses.begin(), block.uses.end(), is_reached))
      continue;
    unlist(at);
    std::erase_if(block.uses, [&](const Use& use) {
      if (!is_reached(use)) return false;
      spare_events_.push_back(use.event);
      return true;
    });
    changed.push_back(at);
  }
  for (const auto at : changed) list(at);
}

size_t MemoryPool::largest_free() const {
  size_t largest = 0;
  for (const auto& [key, list] : free_) largest = std::max(largest, list.rbegin()->first);
  return largest;
}

void MemoryPool::fail(size_t bytes) const {
  const auto limit = limit_ == std::numeric_limits<size_t>::max()
                         ? std::string()
                         : fmt::format(" (at most {})", limit_);
  throw Error(ErrorCode::out_of_memory,
              fmt::format("cannot allocate {} bytes on {}: {} bytes are allocated, {} reserved{}, "
                          "and the largest free block has {}; free tensors of the device, or use "
                          "smaller ones",
                          bytes, name_, statistics_.allocated_bytes, statistics_.reserved_bytes,
                          limit, largest_free()));
}

}  // namespace tutti::cuda
