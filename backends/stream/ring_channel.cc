#include "tutti/backends/stream/ring_channel.h"

#include <sys/epoll.h>

#include <bit>
#include <utility>

namespace tutti {

RingChannel::~RingChannel() { forget_all(); }

size_t RingChannel::write(std::span<const iovec> parts) {
  may_be_rung_ |= out_.disarm();
  const size_t count = out_.write(parts);
  if (count > 0 && out_.consumer_wants_bell()) peer_.ring();
  moved_ |= count > 0;
  return count;
}

size_t RingChannel::read(std::span<std::byte> bytes) {
  may_be_rung_ |= in_.disarm();
  const size_t count = in_.read_until_end(bytes, [this] { return look_for_end(false); });
  if (count == 0) return 0;
  if (in_.producer_wants_bell()) peer_.ring();
  moved_ = true;
  return count;
}

bool RingChannel::arm(bool wants_write) {
  // If bytes have moved since the last arm(), the peer is most likely alive and has not rung the
  // bell. So the kernel is not asked. If that is wrong, the bell or the peer's end wakes the
  // sleeper immediately, and arm() runs again.
  const bool carefully = !std::exchange(moved_, false);
  // The bell is silenced before the rings are checked. So if the peer rings after the check, the
  // bell wakes the sleeper.
  if (std::exchange(may_be_rung_, false) || carefully) own_.silence();
  if (!in_.arm()) return false;
  if (wants_write && !out_.arm()) return false;
  return look_for_end(carefully).empty();
}

void RingChannel::watch(Poller& poller) {
  poller_ = &poller;
  also_watch(own_.descriptor(), EPOLLIN);
}

void RingChannel::also_watch(int descriptor, unsigned events) {
  poller_->watch(descriptor, events);
  for (int& slot : watched_) {
    if (slot >= 0) continue;
    slot = descriptor;
    return;
  }
}

void RingChannel::forget_all() {
  // Closing is not enough: epoll keeps watching a descriptor that another process holds too.
  for (int& slot : watched_) {
    if (slot >= 0) poller_->forget(slot);
    slot = -1;
  }
}

size_t ring_bytes_for(int ranks) {
  constexpr size_t kTotal = 64 << 20, kLeast = 64 << 10, kMost = 1 << 20;
  const auto n = static_cast<size_t>(std::max(ranks, 2));
  return std::clamp(std::bit_floor(kTotal / (n * (n - 1))), kLeast, kMost);
}

}  // namespace tutti
