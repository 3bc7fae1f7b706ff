#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "tutti/backends/shared/shared_memory.h"

namespace tutti {

/// The memory that one rank shares with other threads. Its blocks live as long as any thread holds
/// the heap. So a peer that still reads never accesses unmapped memory. An offset (`place`) in this
/// heap is an address.
class ThreadHeap {
 public:
  ThreadHeap();
  ~ThreadHeap();
  ThreadHeap(const ThreadHeap&) = delete;
  ThreadHeap& operator=(const ThreadHeap&) = delete;

  /// Returns the block that exists from the start. The ranks synchronize through it.
  std::byte* first() const { return first_; }
  std::byte* take(size_t bytes);
  void give_back(std::byte* data) noexcept;
  bool holds(const std::byte* data, size_t bytes) const;

 private:
  struct Block {
    std::byte* data;
    size_t bytes;
    bool used;
  };
  mutable std::mutex mutex_;  // guards blocks_
  std::vector<Block> blocks_;
  std::byte* const first_;  // data of a block in blocks_; it does not move
};

struct MemoryLink;

/// Makes the shared memory of this rank. `links[peer]` is the link to a peer and has the peer's
/// heap; it is null for this rank.
std::unique_ptr<SharedMemory> make_thread_memory(int rank, std::shared_ptr<ThreadHeap> own,
                                                 std::vector<std::shared_ptr<MemoryLink>> links);

}  // namespace tutti
