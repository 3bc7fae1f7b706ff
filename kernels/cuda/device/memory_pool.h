#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tutti/tensor/device_runtime.h"

namespace tutti::cuda {

/// The functions of the driver that a pool needs, for one device. Any threads may call it
/// concurrently. reserve() and create_event() may block, so the pool holds no lock while it calls
/// them. The other functions return immediately.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  /// Returns memory that every stream may use, aligned to 256 bytes, or null if the device has none
  /// left. Throws Error for other failures.
  virtual void* reserve(size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;
  virtual void* create_event() = 0;
  virtual void destroy_event(void* event) noexcept = 0;
  /// Records a point of the stream in the event. Returns false if the device has failed.
  virtual bool record(void* event, StreamRef stream) noexcept = 0;
  /// Returns whether the stream has reached the last recorded point.
  virtual bool reached(void* event) noexcept = 0;
  /// Makes the stream wait, on the device, for the last recorded point. Throws Error.
  virtual void wait(StreamRef stream, void* event) = 0;
};

/// A caching allocator for the memory of one device. It reserves segments from the driver: 2 MiB
/// for requests up to 1 MiB, 20 MiB for requests up to 10 MiB, and multiples of 2 MiB for larger
/// ones. Segments are split into blocks of multiples of 512 bytes. Neighbouring free blocks that
/// the same streams may still use are joined again.
///
/// The host frees memory before streams have finished with it. So a free block remembers the
/// streams that may still use it, each with an event. The same stream can reuse the block
/// immediately. Another stream gets it when the events are reached. If the allocation would
/// otherwise fail, the stream waits for the events on the device. The search order is: free blocks;
/// the driver; the driver again after whole free segments were returned to it; blocks for which the
/// stream must wait. The host never waits for a stream.
///
/// Any thread may call it. Events are created by allocate() and use(), not by free(), because the
/// driver may make their creation wait for blocked streams.
class MemoryPool {
 public:
  /// `name` is the device's name in errors. The pool never reserves more than `limit` bytes.
  /// `source` is borrowed.
  explicit MemoryPool(MemorySource& source, std::string name,
                      size_t limit = std::numeric_limits<size_t>::max());
  /// Returns all memory to the driver. No stream may use any of it any more.
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  /// Returns memory for work on `stream`, aligned to 256 bytes, with arbitrary contents. Throws
  /// Error(out_of_memory) that names the requested, allocated and reserved bytes and the size of
  /// the largest free block.
  void* allocate(size_t bytes, StreamRef stream);
  /// Returns memory that no stream uses any more, so that every stream may use it. The caller's
  /// work on it must be complete before free().
  void* allocate_idle(size_t bytes);
  /// Records that work on `stream` also uses this memory, so that free() takes it into account. The
  /// caller must have ordered the stream's work after the memory became ready.
  void use(void* memory, StreamRef stream);
  /// Frees memory. Work already queued on its streams may still use it. Each stream on which memory
  /// was allocated or used must live until that memory is freed.
  void free(void* memory);

  /// Sets how many bytes may be reserved from now on. Memory that is already reserved stays.
  void limit(size_t bytes);
  /// Returns free segments that no stream uses any more to the driver, and returns their size in
  /// bytes.
  size_t release_free();
  DeviceMemoryStatistics statistics() const;

 private:
  struct Use {
    StreamRef stream;
    void* event;
    uint64_t order = 0;  // order in which events were recorded, over all streams
  };
  struct Block {
    std::byte* segment;
    size_t bytes;
    bool is_small;  // the segment serves small requests
    bool is_listed = false;
    std::vector<Use> uses = {};  // at most one per stream
  };
  using Blocks = std::map<std::byte*, Block>;
  // Free blocks with equal keys are interchangeable. They are in the same kind of segment, and are
  // used by no stream, by the same stream, or by several streams.
  enum class Users { none, one, several };
  using ListKey = std::tuple<bool, Users, void*>;
  using FreeList = std::set<std::pair<size_t, std::byte*>>;

  static ListKey key_of(const Block& block);
  void* allocate(size_t bytes, const StreamRef* stream);
  void* take_event();
  void* find(size_t bytes, ListKey key, const StreamRef* stream, void* event);
  void* find_free(size_t bytes, const StreamRef* stream, void* event);
  void* find_waiting(size_t bytes, StreamRef stream, void* event);
  void* reserve(std::unique_lock<std::mutex>& lock, size_t bytes, const StreamRef* stream,
                void* event);
  size_t release_free(std::unique_lock<std::mutex>& lock);
  void* take(Blocks::iterator at, size_t bytes, const StreamRef* stream, void* event);
  void list(Blocks::iterator at);
  void unlist(Blocks::iterator at);
  void join(Blocks::iterator first, Blocks::iterator second);
  void drop_reached();
  size_t largest_free() const;
  [[noreturn]] void fail(size_t bytes) const;

  MemorySource& source_;
  const std::string name_;

  mutable std::mutex mutex_;  // guards the following
  size_t limit_;
  Blocks blocks_;  // keyed by address
  std::map<ListKey, FreeList> free_;
  std::vector<void*> spare_events_;
  uint64_t recorded_ = 0;
  DeviceMemoryStatistics statistics_;
};

}  // namespace tutti::cuda
