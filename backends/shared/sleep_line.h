#pragma once

#include <atomic>
#include <cstdint>

#include "tutti/base/sync.h"

namespace tutti {

/// A flag in a rank's own memory, which is set while the rank sleeps. The rank sets the flag,
/// checks once more for work, and then sleeps until a peer rings its bell. A peer that has
/// published something clears the flag and rings. Either the rank's last check sees what was
/// published, or the peer sees the flag. For that the peer needs a fence, or a sequentially
/// consistent store, before it reads the flag.
template <class Sync>
struct alignas(128) SleepLineOf {
  typename Sync::template Atomic<uint32_t> sleeps{0};

  void put_up() { sleeps.store(1, std::memory_order_seq_cst); }
  void take_down() { sleeps.store(0, std::memory_order_relaxed); }
  /// Clears the flag. Returns true if it was set; then the caller must ring the rank's bell.
  bool take() {
    return sleeps.load(std::memory_order_seq_cst) != 0 &&
           sleeps.exchange(0, std::memory_order_seq_cst) != 0;
  }
};
using SleepLine = SleepLineOf<Threads>;

}  // namespace tutti
