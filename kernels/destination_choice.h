#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <limits>

#include "tutti/kernels/copy.h"
#include "tutti/kernels/reduce.h"

namespace tutti {

/// Shorter pieces stay in the cache of who leaves them: to wait for memory would show.
inline constexpr size_t kLeastPastCaches = 4 << 10;

/// Copies to where another core reads it.
inline void copy_to(Destination destination, std::byte* place, const std::byte* from,
                    size_t bytes) {
  if (destination == Destination::memory)
    copy_past_caches(place, from, bytes);
  else
    std::memcpy(place, from, bytes);
}

/// Chooses where ranks leave in shared memory what others read next: in their caches, where cores
/// that share an outer cache find it, or in memory, which cores elsewhere read several times faster
/// than a cache that is not theirs. It goes by what chunks cost, some of which are measured; now
/// and then a few go the other way, since a virtual machine's cores move about. The bytes are the
/// same.
class DestinationChoice {
 public:
  static constexpr int kFirstTrial = 16;  // chunks before it
  static constexpr int kTrial = 12;       // chunks: the last ones reuse slots of the first
  static constexpr int kBetween = 1000;   // chunks from one trial to the next
  static constexpr int kMeasured = 8;     // one in so many between them; a trial's are all
  static constexpr float kBetter = 0.8F;  // a change must bring this much

  /// Of the next chunk.
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
  /// Whether to say what the chunk of which next() told cost: to look at a clock shows, in 4 KiB.
  bool is_measured() const { return is_measured_; }
  /// A chunk that all ranks left so. Of the last two the smaller counts: what lasts long because a
  /// core was taken away does so once.
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
  int trial_ = 0;           // chunks that are left of one
  int left_ = kFirstTrial;  // chunks until the next
  std::array<std::array<float, 2>, 2> costs_{{{kUnknown, kUnknown}, {kUnknown, kUnknown}}};
};

}  // namespace tutti
