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

/// Something that moves when poked. One thread at a time calls it (the holder of the engine's
/// token), except abort(), which any thread may call.
class Progressive {
 public:
  virtual ~Progressive() = default;
  /// Moves what can be moved without waiting; true if something moved.
  virtual bool progress() = 0;
  /// Called before sleeping on descriptor(); false: something came in meanwhile, progress again.
  virtual bool arm() = 0;
  /// Readable when progress() is worth a call.
  virtual int descriptor() const = 0;
  /// Fails everything pending with `error`. Never throws.
  virtual void abort(const Error& error) noexcept = 0;
};

/// What rides on every message beside its bytes.
struct MessageHeader {
  uint64_t tag = 0;      // the operation, equal on all ranks
  uint32_t key = 0;      // segment and round within the operation
  uint32_t verdict = 0;  // OR of the verdicts of all ranks whose data is in it; 0 is go
  bool is_lent = false;  // the peer that views them may write there what it sends back; see Loan
  uint64_t place = 0;    // of a Loan of the receiver's to which the bytes were written; 0: none
};

/// Viewed bytes that the viewer may overwrite.
struct Loan {
  std::byte* data = nullptr;  // null: it may not
  uint64_t place = 0;         // for MessageHeader::place
};

/// What Transport::quiet_seconds says where it knows nothing.
inline constexpr double kQuietForEver = std::numeric_limits<double>::infinity();

using Ticket = uint64_t;  // 0 is no ticket
enum class TransferState : uint8_t { pending, done, failed };

/// What became of a peer, told once by Transport::take_event.
struct PeerEvent {
  enum class Kind : uint8_t { lost, left };
  int peer = -1;
  Kind kind = Kind::lost;
  std::string detail;  // what was seen, for the error's text: "connection reset", "end of file"
};

struct TransportCounters {
  uint64_t messages_sent = 0;          // data messages
  uint64_t bytes_sent = 0;             // their payload
  uint64_t control_messages_sent = 0;  // post(), and the transport's own protocol messages
  uint64_t control_bytes_sent = 0;
  uint64_t allocations = 0;             // on the data path
  uint64_t copied_bytes = 0;            // into and out of memory of the backend's own between ranks
  std::vector<uint64_t> bytes_to_peer;  // payload and framing, per peer
};

/// What an operation makes a rank send.
struct Traffic {
  uint64_t messages = 0;
  uint64_t bytes = 0;  // payload
};

/// Point-to-point messages between the ranks of one communicator. Messages are matched by (peer,
/// tag, key) in any order, also before the receive is posted; the bytes that wait for a receive are
/// bounded, larger messages wait at the sender. Nothing here blocks or throws for a peer's death:
/// tickets fail and an event says why.
class Transport : public Progressive {
 public:
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Posts a message; `bytes` must stay valid and unchanged until test() no longer says pending.
  /// peer != rank().
  virtual Ticket isend(int peer, const MessageHeader& header, std::span<const std::byte> bytes) = 0;
  /// Posts a receive of exactly bytes.size() bytes; another length fails the ticket.
  virtual Ticket irecv(int peer, uint64_t tag, uint32_t key, std::span<std::byte> bytes) = 0;
  /// The same, but the bytes may stay where the sender has them. Once test() has said done, view()
  /// says where they can be read; null: in `bytes`. If not null, the ticket lasts until
  /// give_back(), and so does the sender's, at least.
  virtual Ticket irecv_view(int peer, uint64_t tag, uint32_t key, std::span<std::byte> bytes) {
    return irecv(peer, tag, key, bytes);
  }
  virtual const std::byte* view(Ticket) { return nullptr; }
  /// Whether what is viewed may be overwritten now, with what is then sent to its sender: a message
  /// of as many bytes for that very memory, which need not be moved any more.
  virtual Loan loan(Ticket) { return {}; }
  /// False: the sender took its memory back before now, and what was read there means nothing.
  virtual bool give_back(Ticket) { return true; }
  /// done and failed release the ticket (but see irecv_view). For a receive that is done *verdict
  /// is OR-ed with the sender's.
  virtual TransferState test(Ticket ticket, uint32_t* verdict = nullptr) = 0;
  /// Gives a ticket up. The memory may be used by a message in mid-flight until test() says done or
  /// failed, as it will.
  virtual void cancel(Ticket ticket) = 0;
  /// Messages with tags in [first, last] are thrown away from now on, also those that wait here.
  virtual void discard(uint64_t first, uint64_t last) = 0;
  /// Memory for what is received often: peers may reach it faster than other memory. Throws
  /// std::bad_alloc. May outlive the transport; any thread may free it.
  virtual std::unique_ptr<Region> allocate(size_t bytes) { return make_heap_region(bytes); }
  /// True, if a message of this tag has arrived or announced itself and its verdict is not go.
  virtual bool has_veto(uint64_t tag) const = 0;

  /// Control messages: small (at most kMaxControlBytes), unsolicited, ordered per peer, copied.
  static constexpr size_t kMaxControlBytes = 16u << 20;
  virtual void post(int peer, std::span<const std::byte> message) = 0;
  /// True and a message, oldest first, or false.
  virtual bool take(int& peer, std::vector<std::byte>& message) = 0;
  virtual std::optional<PeerEvent> take_event() = 0;

  /// Tells every peer that this rank leaves on purpose and flushes what is queued, until `seconds`
  /// passed. Afterwards only destruction is allowed.
  virtual void goodbye(double seconds) noexcept = 0;
  virtual TransportCounters counters() const = 0;
  /// "memory", "shm", "tcp": how bytes reach this peer.
  virtual std::string_view route(int peer) const = 0;
  /// Seconds since bytes came from this peer, or since its host took bytes that wait to be taken,
  /// as far as the network tells: signs of life where messages are large and the link is slow, so
  /// that its answers come late. Not what its host confirms at once, as it does for a stopped
  /// process. Asked about once a second.
  virtual double quiet_seconds(int /*peer*/) { return kQuietForEver; }
};

}  // namespace tutti
