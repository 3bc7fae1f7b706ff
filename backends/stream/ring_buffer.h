#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "tutti/base/deadline.h"
#include "tutti/base/error.h"
#include "tutti/base/sync.h"
#include "tutti/kernels/destination_choice.h"

namespace tutti {

/// The shared words of a byte ring with one producer and one consumer, in process memory or in a
/// mapping that two processes share. Positions count bytes since the beginning and are never reset;
/// each side's words have a cache line of their own. A zeroed one is an empty ring.
///
/// The side that is about to sleep says so in its flag, looks once more, and then sleeps on a
/// doorbell; the side that moved its position takes the other's flag down and rings. Flags and
/// positions are sequentially consistent: either the sleeper sees the new position, or the mover
/// sees the flag. A side that is awake takes its own flag down, so that the mover need not ring.
template <class Sync>
struct RingControlOf {
  template <class T>
  using Atomic = typename Sync::template Atomic<T>;
  alignas(64) Atomic<uint64_t> head{0};             // bytes written; the producer's
  alignas(64) Atomic<uint64_t> tail{0};             // bytes read; the consumer's
  alignas(64) Atomic<uint32_t> consumer_sleeps{0};  // set by the consumer, taken by the other
  alignas(64) Atomic<uint32_t> producer_sleeps{0};  // the other way round
};
using RingControl = RingControlOf<Threads>;
static_assert(decltype(RingControl::head)::is_always_lock_free);
static_assert(sizeof(RingControl) == 256);

namespace detail {

/// The other side's position, which is never trusted: it may lie in memory that another process
/// writes. It can only have advanced, by `most` bytes.
inline uint64_t checked_ring_position(uint64_t now, uint64_t before, uint64_t most) {
  if (now - before > most)
    throw Error(ErrorCode::peer_lost, "it wrote an impossible position into the shared ring");
  return now;
}

template <class Flag>
bool take_flag(Flag& flag) {
  return flag.load(std::memory_order_seq_cst) != 0 &&
         flag.exchange(0, std::memory_order_seq_cst) != 0;
}

/// One side's own flag. The side's thread alone puts it up; it or the other side takes it down.
template <class Sync>
class SleepFlag {
 public:
  using Flag = typename Sync::template Atomic<uint32_t>;
  explicit SleepFlag(Flag& flag) : flag_(&flag) {}
  void put_up() {
    flag_->store(1, std::memory_order_seq_cst);
    is_up_ = true;
  }
  /// Takes down what is up; true: the other side did, and rings or has rung.
  bool take_down() {
    if (!is_up_) return false;
    is_up_ = false;
    return flag_->exchange(0, std::memory_order_relaxed) == 0;
  }

 private:
  Flag* flag_;
  bool is_up_ = false;
};

}  // namespace detail

/// The writing end. One thread at a time; the memory is borrowed. Capacity: a power of two.
template <class Sync>
class RingProducerOf {
 public:
  RingProducerOf(RingControlOf<Sync>& control, std::span<std::byte> memory)
      : control_(&control), memory_(memory), sleeps_(control.producer_sleeps) {}

  /// Copies in as much as fits; returns how much.
  size_t write(std::span<const iovec> parts) {
    size_t wanted = 0;
    for (const auto& part : parts) wanted += part.iov_len;
    if (free() < wanted) see_tail();
    const size_t total = std::min<size_t>(wanted, free());
    size_t left = total;
    for (const auto& part : parts) {
      const size_t count = std::min(left, part.iov_len);
      copy_in(static_cast<const std::byte*>(part.iov_base), count);
      left -= count;
      if (left == 0) break;
    }
    if (total > 0) control_->head.store(head_, std::memory_order_seq_cst);
    return total;
  }
  /// After a write: true if the consumer sleeps and must be rung.
  bool consumer_wants_bell() { return detail::take_flag(control_->consumer_sleeps); }
  /// Before sleeping for space; false: there is some.
  bool arm() {
    sleeps_.put_up();
    see_tail();
    return free() == 0;
  }
  /// Awake again; true: the consumer rings, or has rung.
  bool disarm() { return sleeps_.take_down(); }

 private:
  uint64_t free() const { return memory_.size() - (head_ - tail_); }
  void see_tail() {
    const uint64_t tail = control_->tail.load(std::memory_order_seq_cst);
    tail_ = detail::checked_ring_position(tail, tail_, head_ - tail_);
  }
  void copy_in(const std::byte* bytes, size_t count) {
    if (count == 0) return;
    if (count < kLeastPastCaches) {
      place(bytes, count, Destination::cache);
      return;
    }
    const auto destination = destination_.next();
    if (!destination_.is_measured()) {
      place(bytes, count, destination);
      return;
    }
    const auto begin = Clock::now();
    place(bytes, count, destination);
    const std::chrono::duration<float, std::nano> lasted = Clock::now() - begin;
    destination_.measured(destination, lasted.count() / static_cast<float>(count));
  }
  void place(const std::byte* bytes, size_t count, Destination destination) {
    const size_t at = head_ & (memory_.size() - 1);
    const size_t first = std::min(count, memory_.size() - at);
    Sync::writes(memory_.data() + at, first);
    copy_to(destination, memory_.data() + at, bytes, first);
    if (count > first) {
      Sync::writes(memory_.data(), count - first);
      copy_to(destination, memory_.data(), bytes + first, count - first);
    }
    head_ += count;
  }

  RingControlOf<Sync>* control_;
  std::span<std::byte> memory_;
  uint64_t head_ = 0;  // own; never read back from shared memory
  uint64_t tail_ = 0;  // as last seen
  detail::SleepFlag<Sync> sleeps_;
  DestinationChoice destination_;
};
using RingProducer = RingProducerOf<Threads>;

/// The reading end. One thread at a time; the memory is borrowed.
template <class Sync>
class RingConsumerOf {
 public:
  RingConsumerOf(RingControlOf<Sync>& control, std::span<const std::byte> memory)
      : control_(&control), memory_(memory), sleeps_(control.consumer_sleeps) {}

  /// Copies out as much as there is, up to bytes.size(); returns how much.
  size_t read(std::span<std::byte> bytes) {
    if (head_ - tail_ < bytes.size()) see_head();
    const size_t count = std::min<size_t>(bytes.size(), head_ - tail_);
    if (count == 0) return 0;
    const size_t at = tail_ & (memory_.size() - 1);
    const size_t first = std::min(count, memory_.size() - at);
    Sync::reads(memory_.data() + at, first);
    std::memcpy(bytes.data(), memory_.data() + at, first);
    if (count > first) {
      Sync::reads(memory_.data(), count - first);
      std::memcpy(bytes.data() + first, memory_.data(), count - first);
    }
    tail_ += count;
    control_->tail.store(tail_, std::memory_order_seq_cst);
    return count;
  }
  /// read() of a ring whose producer may be gone. Where nothing is there it calls look_for_end(),
  /// which says what was seen of the producer's end, and nothing while it is there. Throws
  /// Error(peer_lost) with that text once all is read.
  template <class LookForEnd>
  size_t read_until_end(std::span<std::byte> bytes, const LookForEnd& look_for_end) {
    size_t count = read(bytes);
    if (count > 0) return count;
    const std::string_view end = look_for_end();
    if (end.empty()) return 0;
    // The producer may have written more between the read and its end.
    count = read(bytes);
    if (count == 0) throw Error(ErrorCode::peer_lost, std::string(end));
    return count;
  }
  /// After a read: true if the producer sleeps and must be rung.
  bool producer_wants_bell() { return detail::take_flag(control_->producer_sleeps); }
  /// Before sleeping for bytes; false: there are some.
  bool arm() {
    sleeps_.put_up();
    see_head();
    return head_ == tail_;
  }
  /// Awake again; true: the producer rings, or has rung.
  bool disarm() { return sleeps_.take_down(); }

 private:
  void see_head() {
    const uint64_t head = control_->head.load(std::memory_order_seq_cst);
    head_ = detail::checked_ring_position(head, head_, memory_.size() - (head_ - tail_));
  }

  RingControlOf<Sync>* control_;
  std::span<const std::byte> memory_;
  uint64_t head_ = 0;  // as last seen
  uint64_t tail_ = 0;  // own; never read back from shared memory
  detail::SleepFlag<Sync> sleeps_;
};
using RingConsumer = RingConsumerOf<Threads>;

}  // namespace tutti
