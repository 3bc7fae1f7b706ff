#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/collectives/region.h"

namespace tutti {

/// Something that makes progress when it is polled. One thread at a time calls it (the driver,
/// which holds the engine's token). Any thread may call abort().
class Progressive {
 public:
  virtual ~Progressive() = default;
  /// Moves everything that can move without blocking. Returns true if something moved.
  virtual bool progress() = 0;
  /// Called before sleeping on descriptor(). Returns false if something arrived meanwhile;
  /// progress() must then be called again.
  virtual bool arm() = 0;
  /// Returns a descriptor that is readable when progress() should be called.
  virtual int descriptor() const = 0;
  /// Fails everything that is pending with `error`. Never throws.
  virtual void abort(const Error& error) noexcept = 0;
};

/// The fields of every message besides its bytes.
struct MessageHeader {
  uint64_t tag = 0;      // identifies the operation; equal on all ranks
  uint32_t key = 0;      // segment and round within the operation
  uint32_t verdict = 0;  // OR of the verdicts of all ranks whose data the message contains; 0 is go
  bool is_lent = false;  // a peer that views the bytes may overwrite them with its answer; see Loan
  /// The receiver's memory may already hold the bytes. Then this is the Loan::place of that memory;
  /// otherwise it is 0.
  uint64_t place = 0;
};

/// Bytes that a receiver views in the sender's memory (see irecv_view()), and that it may
/// overwrite.
struct Loan {
  std::byte* data = nullptr;  // null if the viewer may not overwrite them
  uint64_t place = 0;         // becomes MessageHeader::place of the result
};

/// Transport::quiet_seconds() returns this if the transport does not know the time.
inline constexpr double kQuietForEver = std::numeric_limits<double>::infinity();

using Ticket = uint64_t;  // 0 is not a ticket
enum class TransferState : uint8_t { pending, done, failed };

/// Reports that a peer was lost or has left. Transport::take_event() returns each event once.
struct PeerEvent {
  enum class Kind : uint8_t { lost, left };
  int peer = -1;
  Kind kind = Kind::lost;
  std::string detail;  // what was observed, for the error's text: "connection reset", "end of file"
};

struct TransportCounters {
  uint64_t messages_sent = 0;          // number of data messages
  uint64_t bytes_sent = 0;             // payload bytes of the data messages
  uint64_t control_messages_sent = 0;  // post(), and the transport's own protocol messages
  uint64_t control_bytes_sent = 0;
  uint64_t allocations = 0;   // allocations on the data path
  uint64_t copied_bytes = 0;  // bytes copied into and out of the backend's own memory between ranks
  std::vector<uint64_t> bytes_to_peer;  // payload and framing bytes, by peer
};

/// The messages that a rank sends for an operation.
struct Traffic {
  uint64_t messages = 0;
  uint64_t bytes = 0;  // payload bytes
};

/// Point-to-point messages between the ranks of one communicator. Messages are matched with
/// receives by (peer, tag, key), in whatever order they arrive, even before the receive is posted.
/// The bytes that wait for a receive are bounded; larger messages wait at the sender. No function
/// blocks or throws because a peer died. Instead the tickets fail, and an event reports the reason.
class Transport : public Progressive {
 public:
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Posts a message. `bytes` must stay valid and unchanged as long as test() returns pending.
  /// `peer` is not rank().
  virtual Ticket isend(int peer, const MessageHeader& header, std::span<const std::byte> bytes) = 0;
  /// Posts a receive of exactly bytes.size() bytes. A message of another length fails the ticket.
  virtual Ticket irecv(int peer, uint64_t tag, uint32_t key, std::span<std::byte> bytes) = 0;
  /// Posts a receive whose bytes may stay in the sender's memory. After test() returned done,
  /// view() returns the address at which the bytes can be read, or null if they are in `bytes`. If
  /// view() returns an address, the ticket lasts until give_back(). The sender's ticket then lasts
  /// at least as long.
  virtual Ticket irecv_view(int peer, uint64_t tag, uint32_t key, std::span<std::byte> bytes) {
    return irecv(peer, tag, key, bytes);
  }
  virtual const std::byte* view(Ticket) { return nullptr; }
  /// Returns the memory of viewed bytes if the viewer may overwrite it now; else a null Loan. The
  /// viewer writes a result of the same size there, and next sends that result to the owner of the
  /// memory. The message then need not move the bytes.
  virtual Loan loan(Ticket) { return {}; }
  /// Ends a view. Returns false if the sender took its memory back before now; the bytes read from
  /// it are then invalid.
  virtual bool give_back(Ticket) { return true; }
  /// Returns the state of a ticket. If the state is done or failed, the ticket is released (for
  /// views see irecv_view). When a receive is done, the sender's verdict is OR-ed into *verdict.
  virtual TransferState test(Ticket ticket, uint32_t* verdict = nullptr) = 0;
  /// Cancels a ticket. A message in flight may still use the memory until test() returns done or
  /// failed, which it eventually does.
  virtual void cancel(Ticket ticket) = 0;
  /// Discards messages with tags in [first, last] from now on, including those that have already
  /// arrived.
  virtual void discard(uint64_t first, uint64_t last) = 0;
  /// Allocates memory for frequent receives, which peers may reach faster than other memory. Throws
  /// std::bad_alloc. It may outlive the transport, and any thread may free it.
  virtual std::unique_ptr<Region> allocate(size_t bytes) { return make_heap_region(bytes); }
  /// Returns true if a message of this tag has arrived, or was announced, with a verdict other than
  /// go.
  virtual bool has_veto(uint64_t tag) const = 0;

  /// Control messages are small (at most kMaxControlBytes) and need no receive. They arrive in
  /// order per peer. post() copies the message.
  static constexpr size_t kMaxControlBytes = 16u << 20;
  virtual void post(int peer, std::span<const std::byte> message) = 0;
  /// Takes the oldest control message. Returns false if there is none.
  virtual bool take(int& peer, std::vector<std::byte>& message) = 0;
  virtual std::optional<PeerEvent> take_event() = 0;

  /// Sends every peer the farewell of this rank and flushes queued messages, for at most `seconds`.
  /// After this the object may only be destroyed.
  virtual void goodbye(double seconds) noexcept = 0;
  virtual TransportCounters counters() const = 0;
  /// Returns how bytes reach this peer: "memory", "shm" or "tcp".
  virtual std::string_view route(int peer) const = 0;
  /// Returns the seconds since the last sign of life from this peer, as far as the network shows
  /// it. Signs of life are bytes that arrived from the peer, and queued bytes that its host
  /// accepted. Queued bytes count because large messages on a slow link may delay the peer's
  /// answers. A message that the peer's host acknowledges immediately is not a sign of life,
  /// because a host also acknowledges messages for a stopped process. Called about once a second.
  virtual double quiet_seconds(int /*peer*/) { return kQuietForEver; }
};

}  // namespace tutti
