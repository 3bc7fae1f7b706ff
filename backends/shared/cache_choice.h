#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "tutti/backends/shared/chunk_ring.h"
#include "tutti/base/deadline.h"
#include "tutti/kernels/destination_choice.h"
#include "tutti/kernels/reduce.h"

namespace tutti {

/// Adds the time of its scope to `sum`, in ns, unless `sum` is null.
class AddTime {
 public:
  explicit AddTime(float* sum) : sum_(sum) {
    if (sum_ != nullptr) begin_ = Clock::now();
  }
  ~AddTime() {
    if (sum_ == nullptr) return;
    const std::chrono::duration<float, std::nano> lasted = Clock::now() - begin_;
    *sum_ += lasted.count();
  }
  AddTime(const AddTime&) = delete;
  AddTime& operator=(const AddTime&) = delete;

 private:
  float* const sum_;
  Clock::time_point begin_;
};

/// Chooses whether the ranks leave their part of a chunk, which others read, in their own caches or
/// in memory. Rank 0 tries both with chunks of each kind, measures the cost and publishes the
/// better one; the other ranks follow. The published words are hints: with each chunk a rank
/// publishes where it has really left its part. The result has the same bits either way.
class CacheChoice {
 public:
  /// There is one word for each kind of collective, and one each for allreduces and reduces in one
  /// shot.
  static constexpr size_t kOneShot = kCollectiveKindCount, kOneShotReduce = kOneShot + 1,
                          kWords = kOneShotReduce + 1;
  /// The words that rank 0 publishes, in its memory.
  struct alignas(128) Told {
    std::array<std::atomic<Destination>, kWords> destinations{};
  };
  /// The offset of the destination in the payload of a chunk's line.
  static constexpr size_t kDestinationAt = sizeof(uint64_t);

  /// `told` is rank 0's, on all ranks.
  CacheChoice(int rank, const ChunkRing& ring, Told& told)
      : rank_(rank), ring_(ring), told_(told) {}

  /// Returns where this rank leaves its part of a chunk, writes it into the chunk's line, and
  /// begins to count the chunk's cost.
  Destination choose(size_t word, uint64_t chunk);
  /// Returns where a rank left its part of this chunk, from its line.
  Destination of(size_t rank, uint64_t chunk) const {
    return static_cast<Destination>(ring_.line(rank, chunk).payload[kDestinationAt]);
  }
  /// Returns the sum to which the time spent on a chunk is added, or null if the chunk is not
  /// measured.
  float* time_of(uint64_t chunk) {
    auto& cost = costs_[ChunkRing::slot_of(chunk)];
    return cost.is_measured ? &cost.spent_ns : nullptr;
  }
  /// Records the cost of a chunk of `bytes` bytes, with which this rank is done.
  void learn(size_t word, uint64_t chunk, size_t bytes);

 private:
  // The time spent on a slot's chunk, in all stages.
  struct Cost {
    float spent_ns = 0;
    bool is_measured = false;
  };

  const int rank_;
  const ChunkRing& ring_;
  Told& told_;
  std::array<DestinationChoice, kWords> choices_;
  std::array<Cost, ChunkRing::kSlots> costs_;
};

}  // namespace tutti
