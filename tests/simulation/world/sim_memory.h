#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/backends/shared/shared_memory.h"

namespace tutti::simulation {

/// The memory that one simulated rank shares. No address is used twice, so that a peer's write to
/// memory that was given back is found.
class SimHeap {
 public:
  /// `first`: the bytes of a block that exists from the beginning.
  explicit SimHeap(size_t first);
  /// Returns zeroed memory that begins at a page.
  std::byte* take(size_t bytes);
  /// Fills the memory with other bytes and keeps it.
  void give_back(const std::byte* data);
  std::byte* first() const { return blocks_.front().data.get(); }
  /// Returns the offset of `data`, or SharedMemory::kNowhere if it is not in memory that is taken.
  uint64_t place_of(const std::byte* data, size_t bytes) const;
  /// Returns the memory at `place`, or null if there never was any.
  std::byte* at(uint64_t place, size_t bytes) const;
  /// Returns whether all memory that was given back is unchanged since then.
  bool is_untouched() const;

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  struct Block {
    std::unique_ptr<std::byte, Free> data;
    size_t bytes = 0;
    uint64_t place = 0;
    bool is_taken = true;
  };
  std::vector<Block> blocks_;
  uint64_t end_ = 0;  // the offset of the next block
};

/// The shared memory of all ranks of a world.
class SimShared {
 public:
  SimShared(int size, size_t first);
  /// Returns the shared memory of `rank`. It calls `rings` when this rank rings another one, and
  /// `has_good` to learn whether there is permanent memory.
  std::unique_ptr<SharedMemory> of(int rank, std::function<void(int)> rings,
                                   std::function<bool()> has_good);
  /// Returns whether memory of this rank was written after it had been given back.
  bool is_written_late(int rank) const {
    return !heaps_.at(static_cast<size_t>(rank))->is_untouched();
  }

 private:
  std::vector<std::shared_ptr<SimHeap>> heaps_;
};

}  // namespace tutti::simulation
