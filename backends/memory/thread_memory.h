#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "tutti/backends/shared/shared_memory.h"

namespace tutti {

/// The memory that one rank shares with the other threads. Its blocks live as long as anyone holds
/// the heap, so a peer that still reads never touches unmapped memory. Offsets (`place`) are
/// addresses.
class ThreadHeap {
 public:
  ThreadHeap();
  ~ThreadHeap();
  ThreadHeap(const ThreadHeap&) = delete;
  ThreadHeap& operator=(const ThreadHeap&) = delete;

  /// Returns the block that exists from the start, through which the ranks synchronize.
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
  std::byte* const first_;  // initialized last, from a block of blocks_; blocks do not move
};

struct MemoryLink;

/// `links[peer]` is null at the own rank; the peer's heap is in its link.
std::unique_ptr<SharedMemory> make_thread_memory(int rank, std::shared_ptr<ThreadHeap> own,
                                                 std::vector<std::shared_ptr<MemoryLink>> links);

}  // namespace tutti
