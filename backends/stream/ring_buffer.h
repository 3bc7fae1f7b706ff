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

/// The shared state of a byte ring with one producer and one consumer. It is in process memory, or
/// in a mapping that two processes share. Positions count the bytes since the beginning and are
/// never reset. Each field has a cache line of its own. A zeroed struct is an empty ring.
///
/// A side that is about to sleep sets its flag, checks the ring once more, and then sleeps on a
/// bell. The side that moves its position clears the other side's flag and rings the bell. Flags
/// and positions are sequentially consistent. So either the sleeper sees the new position, or the
/// mover sees the flag. A side that wakes up clears its own flag, so that the mover need not ring.
template <class Sync>
struct RingControlOf {
  template <class T>
  using Atomic = typename Sync::template Atomic<T>;
  alignas(64) Atomic<uint64_t> head{0};             // bytes written so far; set by the producer
  alignas(64) Atomic<uint64_t> tail{0};             // bytes read so far; set by the consumer
  alignas(64) Atomic<uint32_t> consumer_sleeps{0};  // set by the consumer, cleared by either side
  alignas(64) Atomic<uint32_t> producer_sleeps{0};  // set by the producer, cleared by either side
};
using RingControl = RingControlOf<Threads>;
static_assert(decltype(RingControl::head)::is_always_lock_free);
static_assert(sizeof(RingControl) == 256);

namespace detail {

/// Returns the other side's position `now` after a check. Another process may write that memory, so
/// the position is not trusted: it may only have advanced since `before`, by at most `most` bytes.
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

/// The sleep flag of one side. Only that side's thread sets it. Either side clears it.
template <class Sync>
class SleepFlag {
 public:
  using Flag = typename Sync::template Atomic<uint32_t>;
  explicit SleepFlag(Flag& flag) : flag_(&flag) {}
  void put_up() {
    flag_->store(1, std::memory_order_seq_cst);
    is_up_ = true;
  }
  /// Clears the flag if this side has set it. Returns true if the other side has already cleared
  /// it. Then the other side rings, or has already rung, this side's bell.
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

/// The writing end of a ring. One thread at a time uses it. The memory is borrowed. Its size is a
/// power of two.
template <class Sync>
class RingProducerOf {
 public:
  RingProducerOf(RingControlOf<Sync>& control, std::span<std::byte> memory)
      : control_(&control), memory_(memory), sleeps_(control.producer_sleeps) {}

  /// Copies as many bytes into the ring as fit and returns their number.
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
  /// Called after a write. Returns true if the consumer sleeps and must be woken by its bell.
  bool consumer_wants_bell() { return detail::take_flag(control_->consumer_sleeps); }
  /// Called before sleeping until there is space. Returns false if there is space already.
  bool arm() {
    sleeps_.put_up();
    see_tail();
    return free() == 0;
  }
  /// Called after sleeping. Returns true if the consumer rings, or has rung, this side's bell.
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
  uint64_t head_ = 0;  // this side's position; never read back from shared memory
  uint64_t tail_ = 0;  // the consumer's position, as last seen
  detail::SleepFlag<Sync> sleeps_;
  DestinationChoice destination_;
};
using RingProducer = RingProducerOf<Threads>;

/// The reading end of a ring. One thread at a time uses it. The memory is borrowed.
template <class Sync>
class RingConsumerOf {
 public:
  RingConsumerOf(RingControlOf<Sync>& control, std::span<const std::byte> memory)
      : control_(&control), memory_(memory), sleeps_(control.consumer_sleeps) {}

  /// Copies up to bytes.size() bytes out of the ring and returns their number.
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
  /// Reads from a ring whose producer may have ended. If the ring is empty, it calls
  /// look_for_end(), which returns how the producer ended, or an empty text while the producer
  /// runs. When everything is read and the producer has ended, throws Error(peer_lost) with that
  /// text.
  template <class LookForEnd>
  size_t read_until_end(std::span<std::byte> bytes, const LookForEnd& look_for_end) {
    size_t count = read(bytes);
    if (count > 0) return count;
    const std::string_view end = look_for_end();
    if (end.empty()) return 0;
    // The producer may have written more between the first read and its end.
    count = read(bytes);
    if (count == 0) throw Error(ErrorCode::peer_lost, std::string(end));
    return count;
  }
  /// Called after a read. Returns true if the producer sleeps and must be woken by its bell.
  bool producer_wants_bell() { return detail::take_flag(control_->producer_sleeps); }
  /// Called before sleeping until bytes arrive. Returns false if there are bytes already.
  bool arm() {
    sleeps_.put_up();
    see_head();
    return head_ == tail_;
  }
  /// Called after sleeping. Returns true if the producer rings, or has rung, this side's bell.
  bool disarm() { return sleeps_.take_down(); }

 private:
  void see_head() {
    const uint64_t head = control_->head.load(std::memory_order_seq_cst);
    head_ = detail::checked_ring_position(head, head_, memory_.size() - (head_ - tail_));
  }

  RingControlOf<Sync>* control_;
  std::span<const std::byte> memory_;
  uint64_t head_ = 0;  // the producer's position, as last seen
  uint64_t tail_ = 0;  // this side's position; never read back from shared memory
  detail::SleepFlag<Sync> sleeps_;
};
using RingConsumer = RingConsumerOf<Threads>;

}  // namespace tutti
