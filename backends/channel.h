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

/// A reliable, ordered stream of bytes to one peer, never blocking. StreamTransport (one protocol
/// for all) runs over any mix of them: rings in memory, rings in shared memory, sockets.
/// One thread at a time.
class Channel {
 public:
  virtual ~Channel() = default;
  /// Takes as many bytes as it can now, in order; 0: full. Throws Error(peer_lost) whose text is
  /// what was seen ("connection reset").
  virtual size_t write(std::span<const iovec> parts) = 0;
  /// Reads up to bytes.size() bytes; 0: nothing here now. Throws Error(peer_lost) at the end of the
  /// stream, after the last byte was read.
  virtual size_t read(std::span<std::byte> bytes) = 0;
  /// The same into several places, one after another; the last may stay empty although there is
  /// more.
  virtual size_t read_parts(std::span<const iovec> parts) {
    return read({static_cast<std::byte*>(parts[0].iov_base), parts[0].iov_len});
  }
  /// Before sleeping. False: reading is worth a try now (or writing, if `wants_write`).
  virtual bool arm(bool wants_write) = 0;
  /// Puts what must be watched into the poller, once, at the start. The channel takes it out again
  /// when it is destroyed, before the poller: closing is not enough where another process holds the
  /// descriptor too.
  virtual void watch(Poller& poller) = 0;
  virtual std::string_view route() const = 0;  // how bytes travel, for the timeline: "tcp"
  /// Returns the seconds since the network last saw a sign of life of the peer, or infinity
  /// if the network does not report it; see Transport::quiet_seconds.
  virtual double quiet_seconds() { return std::numeric_limits<double>::infinity(); }
  /// Whether all that was written has reached the peer's host, so that ending this rank cannot undo
  /// it. Nothing wakes a sleeper when this changes.
  virtual bool delivered() { return true; }
};

}  // namespace tutti
