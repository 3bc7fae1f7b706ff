#pragma once

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "tutti/base/deadline.h"
#include "tutti/kernels/cuda/flags/flag_tile.h"

namespace tutti::test {

/// Stores and loads of flags by host threads, with a random delay before each store.
struct HostAtomics {
  std::minstd_rand random;
  Clock::time_point deadline;

  void delay() {
    const auto what = random() % 1024;
    if (what == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
    if (what < 60) std::this_thread::yield();
  }
  void store_release(uint32_t* word, uint32_t value) {
    delay();
    std::atomic_ref(*word).store(value, std::memory_order_release);
  }
  uint32_t load_acquire(const uint32_t* word) const {
    return std::atomic_ref(const_cast<uint32_t&>(*word)).load(std::memory_order_acquire);
  }
  // Each half of a packet is stored atomically, but the halves come in any order.
  static uint64_t& half(const cuda::FlagPacket* place, int which) {
    return reinterpret_cast<uint64_t*>(const_cast<cuda::FlagPacket*>(place))[which];
  }
  void store_packet(cuda::FlagPacket* place, const cuda::FlagPacket& packet) {
    const uint64_t halves[] = {packet.first | uint64_t{packet.first_round} << 32,
                               packet.second | uint64_t{packet.second_round} << 32};
    const int first = static_cast<int>(random() % 2);
    for (const int which : {first, 1 - first}) {
      delay();
      std::atomic_ref(half(place, which)).store(halves[which], std::memory_order_relaxed);
    }
  }
  cuda::FlagPacket load_packet(const cuda::FlagPacket* place) const {
    const auto first = std::atomic_ref(half(place, 0)).load(std::memory_order_relaxed);
    const auto second = std::atomic_ref(half(place, 1)).load(std::memory_order_relaxed);
    return {static_cast<uint32_t>(first), static_cast<uint32_t>(first >> 32),
            static_cast<uint32_t>(second), static_cast<uint32_t>(second >> 32)};
  }
  // A thread sleeps after it has polled for a while. On a busy machine, a thread that yields
  // returns late, while one that sleeps returns soon.
  bool may_go_on(uint32_t polls, const uint32_t* abort) const {
    if (polls < 8)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    return load_acquire(abort) == 0 && Clock::now() < deadline;
  }
  void leave(FlagRecord& record, cuda::FlagState& state, const FlagRecord& what) {
    if (std::atomic_ref(state.is_poisoned).exchange(1) != 0) return;
    record.rank = what.rank;
    record.peer = what.peer;
    record.block = what.block;
    record.expected = what.expected;
    record.seen = what.seen;
    store_release(&record.is_set, 1);
  }
};

}  // namespace tutti::test
