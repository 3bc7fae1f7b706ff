#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <limits>

#include "tutti/kernels/copy.h"
#include "tutti/kernels/reduce.h"

namespace tutti {

/// Shorter pieces always stay in the writer's cache, because waiting for memory would dominate
/// their cost.
inline constexpr size_t kLeastPastCaches = 4 << 10;

/// Copies `bytes` bytes to memory that another core reads next.
inline void copy_to(Destination destination, std::byte* place, const std::byte* from,
                    size_t bytes) {
  if (destination == Destination::memory)
    copy_past_caches(place, from, bytes);
  else
    std::memcpy(place, from, bytes);
}

/// Chooses whether a rank writes data for its peers into its cache or past the caches into memory.
/// Cores that share an outer cache read the cached copy faster. Other cores read memory several
/// times faster than a distant core's cache. The choice follows the measured costs of chunks. A few
/// chunks regularly try the other destination, since a virtual machine's cores migrate. The choice
/// does not change the written bytes.
class DestinationChoice {
 public:
  static constexpr int kFirstTrial = 16;  // chunks before the first trial
  /// Number of chunks in a trial. The last chunks of a trial reuse the slots of its first chunks.
  static constexpr int kTrial = 12;
  static constexpr int kBetween = 1000;   // chunks from one trial to the next
  static constexpr int kMeasured = 8;     // between trials one chunk in this many is measured
  static constexpr float kBetter = 0.8F;  // the other destination wins below this cost ratio

  /// Returns the destination of the next chunk.
  Destination next() {
    const Destination other =
        favourite_ == Destination::cache ? Destination::memory : Destination::cache;
    is_measured_ = true;
    if (trial_ > 0) {
      --trial_;
      return other;
    }
    if (cost(other) < kBetter * cost(favourite_)) {
      favourite_ = other;
      left_ = kBetween;
      return favourite_;
    }
    if (--left_ > 0) {
      is_measured_ = left_ % kMeasured == 0;
      return favourite_;
    }
    left_ = kBetween;
    trial_ = kTrial - 1;
    return other;
  }
  /// Returns whether the caller must call measured() for the chunk whose destination next()
  /// returned last. Only some chunks are measured, because the time to read a clock is noticeable
  /// in 4 KiB.
  bool is_measured() const { return is_measured_; }
  /// Records the cost of a chunk that all ranks wrote to the destination `way`. The smaller of the
  /// last two costs counts, so that one chunk delayed by a preempted core changes nothing.
  void measured(Destination way, float ns_per_byte) {
    auto& [last, before] = costs_[index(way)];
    before = last;
    last = ns_per_byte;
  }

 private:
  static size_t index(Destination way) { return way == Destination::memory ? 1 : 0; }
  float cost(Destination way) const {
    const auto& [last, before] = costs_[index(way)];
    return std::min(last, before);
  }

  static constexpr float kUnknown = std::numeric_limits<float>::infinity();
  Destination favourite_ = Destination::cache;
  bool is_measured_ = false;
  int trial_ = 0;           // chunks left in the current trial
  int left_ = kFirstTrial;  // chunks until the next trial
  std::array<std::array<float, 2>, 2> costs_{{{kUnknown, kUnknown}, {kUnknown, kUnknown}}};
};

}  // namespace tutti
