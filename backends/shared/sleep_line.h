#pragma once

#include <atomic>
#include <cstdint>

#include "tutti/base/sync.h"

namespace tutti {

/// A word by which a rank says that it is about to sleep, in its own memory. The rank puts it up,
/// looks once more, and then sleeps until it is rung; a peer that has published something takes it
/// down and rings. Either the sleeper's last look sees what was published, or the peer sees the
/// word, if the peer has a fence or a sequentially consistent store before it looks.
template <class Sync>
struct alignas(128) SleepLineOf {
  typename Sync::template Atomic<uint32_t> sleeps{0};

  void put_up() { sleeps.store(1, std::memory_order_seq_cst); }
  void take_down() { sleeps.store(0, std::memory_order_relaxed); }
  /// True: the rank slept, and the caller is the one that must ring it.
  bool take() {
    return sleeps.load(std::memory_order_seq_cst) != 0 &&
           sleeps.exchange(0, std::memory_order_seq_cst) != 0;
  }
};
using SleepLine = SleepLineOf<Threads>;

}  // namespace tutti
