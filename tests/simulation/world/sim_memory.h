#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/backends/shared/shared_memory.h"

namespace tutti::simulation {

/// The memory that one simulated rank shares, of this process. Nothing of it is used twice, so
/// that a peer which still writes where memory was given back is found.
class SimHeap {
 public:
  /// `first`: so many bytes are there from the beginning.
  explicit SimHeap(size_t first);
  /// Zeroed, at a page.
  std::byte* take(size_t bytes);
  /// Something else is there from now on, and stays.
  void give_back(const std::byte* data);
  std::byte* first() const { return blocks_.front().data.get(); }
  /// SharedMemory::kNowhere: it is not in memory that is taken.
  uint64_t place_of(const std::byte* data, size_t bytes) const;
  /// Null: nothing was ever there.
  std::byte* at(uint64_t place, size_t bytes) const;
  /// Whether all that was given back is as it was left.
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
  uint64_t end_ = 0;  // where the next one begins
};

/// The memory of all ranks of a world.
class SimShared {
 public:
  SimShared(int size, size_t first);
  /// `rings`: called when this rank rings another one. `has_good`: asked whether there is memory
  /// for good.
  std::unique_ptr<SharedMemory> of(int rank, std::function<void(int)> rings,
                                   std::function<bool()> has_good);
  /// Whether memory of this rank was written when it had been given back.
  bool is_written_late(int rank) const {
    return !heaps_.at(static_cast<size_t>(rank))->is_untouched();
  }

 private:
  std::vector<std::shared_ptr<SimHeap>> heaps_;
};

}  // namespace tutti::simulation
