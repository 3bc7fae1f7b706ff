#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "tutti/base/descriptor.h"

namespace tutti {

/// A reliable, ordered stream of bytes to one peer. No function blocks. StreamTransport runs one
/// protocol over any mix of channels: rings in memory, rings in shared memory, sockets. One thread
/// at a time uses a channel.
class Channel {
 public:
  virtual ~Channel() = default;
  /// Writes as many bytes as the channel can take now, in order. Returns their number, or 0 if the
  /// channel is full. Throws Error(peer_lost) with the cause as text ("connection reset").
  virtual size_t write(std::span<const iovec> parts) = 0;
  /// Reads up to bytes.size() bytes. Returns their number, or 0 if nothing has arrived. Throws
  /// Error(peer_lost) at the end of the stream, after the last byte was read.
  virtual size_t read(std::span<std::byte> bytes) = 0;
  /// Reads like read(), but into several buffers, one after another. The last buffer may stay empty
  /// although more bytes have arrived.
  virtual size_t read_parts(std::span<const iovec> parts) {
    return read({static_cast<std::byte*>(parts[0].iov_base), parts[0].iov_len});
  }
  /// Called before the thread sleeps. Returns false if a read may succeed now. With `wants_write`,
  /// also returns false if a write may succeed now.
  virtual bool arm(bool wants_write) = 0;
  /// Adds the channel's descriptors to the poller. Called once, at the start. The channel removes
  /// them when it is destroyed, which must happen before the poller is destroyed. Closing a
  /// descriptor does not remove it from the poller if another process holds it too.
  virtual void watch(Poller& poller) = 0;
  virtual std::string_view route() const = 0;  // how the bytes travel, for the timeline: "tcp"
  /// Returns the seconds since the network last saw a sign of life of the peer, or infinity
  /// if the network does not report it; see Transport::quiet_seconds.
  virtual double quiet_seconds() { return std::numeric_limits<double>::infinity(); }
  /// Returns whether everything that was written has reached the peer's host. Then the data arrives
  /// even if this rank ends. Nothing wakes a sleeping thread when the result changes.
  virtual bool delivered() { return true; }
};

}  // namespace tutti
