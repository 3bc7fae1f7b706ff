#pragma once

#include <atomic>
#include <cstdint>

#include "tutti/base/sync.h"

namespace tutti {

/// A word in a rank's own memory that publishes that the rank is about to sleep. The rank sets it,
/// checks once more for work, and then sleeps until it is rung. A peer that has published something
/// clears the word and rings. Either the sleeper's last check sees what was published, or the peer
/// sees the word. For that the peer needs a fence or a sequentially consistent store before it
/// reads the word.
template <class Sync>
struct alignas(128) SleepLineOf {
  typename Sync::template Atomic<uint32_t> sleeps{0};

  void put_up() { sleeps.store(1, std::memory_order_seq_cst); }
  void take_down() { sleeps.store(0, std::memory_order_relaxed); }
  /// Clears the word. Returns true if it was set; the caller must then ring the rank.
  bool take() {
    return sleeps.load(std::memory_order_seq_cst) != 0 &&
           sleeps.exchange(0, std::memory_order_seq_cst) != 0;
  }
};
using SleepLine = SleepLineOf<Threads>;

}  // namespace tutti
