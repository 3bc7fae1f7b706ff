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

/// Adds to `sum`, unless that is null, how many ns its scope takes.
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

/// Whether the ranks leave what others read of a chunk in their own caches or in memory. Rank 0
/// tries both with chunks of each kind, measures what they cost, and says which is better in words
/// of its own; the others follow. The words are hints: each rank tells with each chunk where it has
/// left its part. The bytes are the same.
class CacheChoice {
 public:
  /// For each kind of a collective, and for allreduces and reduces in one shot.
  static constexpr size_t kOneShot = kCollectiveKindCount, kOneShotReduce = kOneShot + 1,
                          kWords = kOneShotReduce + 1;
  /// In rank 0's memory.
  struct alignas(128) Told {
    std::array<std::atomic<Destination>, kWords> destinations{};
  };
  /// Returns where it lies in the payload of a chunk's line.
  static constexpr size_t kDestinationAt = sizeof(uint64_t);

  /// `told` is rank 0's, for all ranks.
  CacheChoice(int rank, const ChunkRing& ring, Told& told)
      : rank_(rank), ring_(ring), told_(told) {}

  /// Returns where this rank leaves its part of a chunk. Its line tells that from now on, and the
  /// cost is counted from now on.
  Destination choose(size_t word, uint64_t chunk);
  /// Returns where a rank left its part of this chunk, as its line tells.
  Destination of(size_t rank, uint64_t chunk) const {
    return static_cast<Destination>(ring_.line(rank, chunk).payload[kDestinationAt]);
  }
  /// The time that is spent on a chunk is added here. Null: that chunk is not measured.
  float* time_of(uint64_t chunk) {
    auto& cost = costs_[ChunkRing::slot_of(chunk)];
    return cost.is_measured ? &cost.spent_ns : nullptr;
  }
  /// This rank is done with a chunk of so many bytes.
  void learn(size_t word, uint64_t chunk, size_t bytes);

 private:
  // The time of each slot's chunk, on all stages.
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
