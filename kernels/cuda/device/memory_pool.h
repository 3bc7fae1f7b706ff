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

/// What a pool needs of the driver, for one device. Any thread; several at once. reserve() and
/// create_event() may wait, so the pool holds no lock around them; the others return at once.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  /// Memory that every stream may use, aligned to 256 bytes; null where there is none left. Throws
  /// Error for anything else.
  virtual void* reserve(size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;
  virtual void* create_event() = 0;
  virtual void destroy_event(void* event) noexcept = 0;
  /// Whether the event now marks this point of the stream; false: the device has failed.
  virtual bool record(void* event, StreamRef stream) noexcept = 0;
  /// Whether the stream has come to the last point recorded.
  virtual bool reached(void* event) noexcept = 0;
  /// The stream waits on the device for the last point recorded. Throws Error.
  virtual void wait(StreamRef stream, void* event) = 0;
};

/// Memory of one device, kept for the next who asks. The driver is asked for segments (2 MiB for
/// requests up to 1 MiB, 20 MiB up to 10 MiB, else multiples of 2 MiB), which are split into blocks
/// of multiples of 512 bytes; neighbours that are free alike become one block again.
///
/// Streams run late, so a free block remembers the streams that may still use it, each with an
/// event. Its own stream has it again at once. Any other stream gets it when the events are
/// reached; only before it would fail is it made to wait for them on the device. The order of
/// search: free blocks, the driver, the driver again after whole free segments went back to it,
/// and blocks that must be waited for. The host never waits for a stream.
///
/// Any thread. Events are made when memory is asked for, not when it is freed, since the driver may
/// let a caller of that wait for streams that are held.
class MemoryPool {
 public:
  /// `name` is the device's in errors; more than `limit` bytes are never reserved. `source` is
  /// borrowed.
  explicit MemoryPool(MemorySource& source, std::string name,
                      size_t limit = std::numeric_limits<size_t>::max());
  /// Gives all memory back to the driver; no stream may use any of it any more.
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  /// Memory for work on `stream`, aligned to 256 bytes, with any contents. Throws
  /// Error(out_of_memory) that names the bytes asked for, allocated, reserved and of the largest
  /// free block.
  void* allocate(size_t bytes, StreamRef stream);
  /// Memory that no stream uses any more, so that all may; free() counts on the same.
  void* allocate_idle(size_t bytes);
  /// Work on `stream` uses this memory, too: free() does not forget it. In the order of the
  /// stream's work the caller has seen to it that the memory is ready there.
  void use(void* memory, StreamRef stream);
  /// What was put on its streams until now may still use it. A stream must live until what was
  /// allocated or used for it is freed.
  void free(void* memory);

  /// More than so many bytes are not reserved from now on; what is reserved stays.
  void limit(size_t bytes);
  /// Gives free segments that no stream uses any more back to the driver. Returns their bytes.
  size_t release_free();
  DeviceMemoryStatistics statistics() const;

 private:
  struct Use {
    StreamRef stream;
    void* event;
    uint64_t order = 0;  // of its recording, over all streams
  };
  struct Block {
    std::byte* segment;
    size_t bytes;
    bool is_small;  // of a segment for small requests
    bool is_listed = false;
    std::vector<Use> uses = {};  // at most one a stream
  };
  using Blocks = std::map<std::byte*, Block>;
  // Which free blocks can replace each other: of a kind of segments, used by nobody, by one stream,
  // or by several.
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
  Blocks blocks_;  // by address
  std::map<ListKey, FreeList> free_;
  std::vector<void*> spare_events_;
  uint64_t recorded_ = 0;
  DeviceMemoryStatistics statistics_;
};

}  // namespace tutti::cuda
