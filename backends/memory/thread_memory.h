#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "tutti/backends/shared/shared_memory.h"

namespace tutti {

/// What one thread-rank shares: blocks that live as long as anyone holds the heap, so that a peer
/// which still reads cannot fall into a hole. A place is an address.
class ThreadHeap {
 public:
  ThreadHeap();
  ~ThreadHeap();
  ThreadHeap(const ThreadHeap&) = delete;
  ThreadHeap& operator=(const ThreadHeap&) = delete;

  /// The block that is there from the beginning, for what the ranks tell each other.
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
  mutable std::mutex mutex_;  // guards the following
  std::vector<Block> blocks_;
  std::byte* const first_;  // made last: out of the blocks, which do not move
};

struct MemoryLink;

/// `links[peer]` is null at the own rank; the peer's heap is in its link.
std::unique_ptr<SharedMemory> make_thread_memory(int rank, std::shared_ptr<ThreadHeap> own,
                                                 std::vector<std::shared_ptr<MemoryLink>> links);

}  // namespace tutti
