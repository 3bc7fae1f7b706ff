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

/// Adds the nanoseconds that its scope takes to `sum`, unless `sum` is null.
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

/// Chooses where a rank leaves the part of a chunk that other ranks read: in its own cache or in
/// memory. Rank 0 tries both with chunks of each kind, measures the cost and publishes the cheaper
/// choice. The other ranks follow. The published choice is only a hint, so each rank also publishes
/// with every chunk where its part really is. The bits of the result do not depend on the choice.
class CacheChoice {
 public:
  /// Indices of the choices, which are called `word` below. There is one choice per kind of
  /// collective, and one each for allreduces and reduces in one shot (see
  /// Geometry::one_shot_bytes).
  static constexpr size_t kOneShot = kCollectiveKindCount, kOneShotReduce = kOneShot + 1,
                          kWords = kOneShotReduce + 1;
  /// The choices that rank 0 publishes. They are in rank 0's memory.
  struct alignas(128) Told {
    std::array<std::atomic<Destination>, kWords> destinations{};
  };
  /// The offset of the Destination in the payload of a ChunkLine, in bytes.
  static constexpr size_t kDestinationAt = sizeof(uint64_t);

  /// `told` is in rank 0's memory; all ranks pass the same object.
  CacheChoice(int rank, const ChunkRing& ring, Told& told)
      : rank_(rank), ring_(ring), told_(told) {}

  /// Chooses where this rank leaves its part of a chunk, and publishes the choice in the chunk's
  /// line. Begins to measure the cost of the chunk.
  Destination choose(size_t word, uint64_t chunk);
  /// Returns where a rank left its part of this chunk, as the chunk's line says.
  Destination of(size_t rank, uint64_t chunk) const {
    return static_cast<Destination>(ring_.line(rank, chunk).payload[kDestinationAt]);
  }
  /// Returns the counter of the time spent on a chunk, in ns, or null if the chunk is not measured.
  float* time_of(uint64_t chunk) {
    auto& cost = costs_[ChunkRing::slot_of(chunk)];
    return cost.is_measured ? &cost.spent_ns : nullptr;
  }
  /// Records the cost of a chunk of `bytes` bytes that this rank has finished.
  void learn(size_t word, uint64_t chunk, size_t bytes);

 private:
  // The time that all stages spent on the chunk that is in a slot now.
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
