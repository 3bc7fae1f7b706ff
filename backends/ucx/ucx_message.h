#pragma once

#include <ucp/api/ucp.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tutti/collectives/transport.h"

namespace tutti {

/// Two UcxTransports exchange active messages. The header of each has one of these types:
///
///   eager       a whole message of moderate size; it costs credit
///   rendezvous  a message whose bytes wait at the sender under `ticket`; UCX reports to the sender
///               when they are received or refused
///   announce    a message whose bytes wait at the sender. The sender can put them into the
///               receiver's memory. If `region` is not 0, the receiver can also read the bytes at
///               `address` in that region of the sender. If the region is new to the receiver, its
///               remote key comes along. If the bytes are lent, the receiver may overwrite them. If
///               they are already written into memory that the receiver lent, `address` is their
///               address there.
///   place       allows the sender to put `length` more bytes of the announced message `ticket` at
///               `address` in the receiver's region `key`. If the region is new to the sender, its
///               remote key comes along. `tag` is the receiver's ticket.
///   landed      `length` bytes of the receive `ticket` have been put; 0: no more will be put
///   taken       the receiver needs no more bytes of the announced message `ticket`
///   forget      the region `key` is gone
///   withdraw    the sender asks to take back the message `ticket`, which has this `tag`
///   withdrawn   the answer to withdraw: the message `ticket` is gone (`length` 1), or it will be
///               received (`length` 0)
///   credit      returns credit: the receiver no longer holds eager messages that cost `length` and
///               control messages that cost `ticket`
///   control     a control message
///   hello       the first message to a peer: the sender's UcxSign for the peer is at `address` in
///               the sender's region `key`, whose remote key comes along
///   attached    the answer to hello: the region is attached, or it never will be
///   goodbye     the sender leaves on purpose; all its messages precede this one
///   farewell    the answer to goodbye: everything has arrived
///   gone        the sender leaves without a goodbye
///
/// The messages of a pair of ranks arrive in order.
enum class UcxMessageType : uint32_t {
  eager = 1,
  rendezvous,
  announce,
  place,
  landed,
  taken,
  forget,
  withdraw,
  withdrawn,
  credit,
  control,
  hello,
  attached,
  goodbye,
  farewell,
  gone
};

enum class UcxLoan : uint32_t { none, lent, written };

/// The header of a message. It is sent without conversion, because the ranks of a communicator run
/// the same build on machines of one kind. UCX requires this too.
struct UcxHeader {
  UcxMessageType type = UcxMessageType::gone;
  uint32_t from = 0;
  uint32_t key = 0;
  uint32_t verdict = 0;
  uint32_t region = 0;
  UcxLoan loan = UcxLoan::none;
  uint64_t length = 0;
  uint64_t tag = 0;
  uint64_t ticket = 0;
  uint64_t address = 0;
};

/// The state that a rank publishes to one peer, in memory that the peer has mapped. `has_given_up`
/// means that the rank takes back the memory that the peer may put into or read. `writes` is the
/// number of the peer's loans that the rank is writing to.
///
/// A writer first raises its own `writes` and then reads the peer's `has_given_up`. A rank that
/// gives up first sets its own `has_given_up` and then reads the peer's `writes`. So either the
/// rank that gives up sees the write and waits, or the writer sees `has_given_up` and does not
/// write.
struct UcxSign {
  std::atomic<bool> has_given_up{false};
  std::atomic<uint32_t> writes{0};
};

/// The maximum number of parts of one message that are put at the same time.
inline constexpr size_t kMostParts = 4;

/// An isend or irecv of the user, from that call until test() releases it.
struct UcxTransfer {
  enum class Stage : uint8_t {
    unused,
    queued,   // send: waits for its turn
    running,  // UCX, or a peer, uses the transfer's memory
    posted,   // receive: no message has arrived for it yet
    lent,     // receive: the user reads the bytes in the sender's memory
    done,
    failed
  };

  bool over() const {
    return stage == Stage::done || stage == Stage::failed || stage == Stage::lent;
  }
  Ticket ticket() const { return Ticket{generation} << 32 | (index + 1); }

  uint32_t index = 0;
  uint32_t generation = 0;
  Stage stage = Stage::unused;
  bool is_send = false;
  bool is_rendezvous = false;  // true if the bytes wait at the sender
  bool is_put = false;         // true if the sender puts the bytes
  bool is_starved = false;     // receive: true if it waits for a slot
  bool doomed = false;         // true if the transfer will fail, whatever UCX reports
  bool awaits_answer = false;  // send: true while the peer has not answered the withdraw
  bool is_sent = false;        // true if UCX is done with the memory, but an answer is awaited
  bool is_lent = false;        // receive: true if this rank may overwrite the viewed memory
  bool writes = false;         // receive: true while this rank writes to the viewed memory
  int peer = -1;
  uint64_t tag = 0;
  uint32_t key = 0;
  uint32_t verdict = 0;
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  size_t bytes = 0;
  // The next members are used for messages that the sender puts.
  size_t placed = 0;                // bytes for which the receiver has given memory
  size_t landed = 0;                // bytes that have arrived
  uint32_t parts = 0;               // parts that have memory but have not arrived yet
  uint32_t region = 0;              // receive: id of the region of the target; 0: none
  bool may_view = false;            // receive: the user accepts a view of the bytes
  const std::byte* view = nullptr;  // receive: the view, or null
  uint64_t remote = 0;              // receive: the sender's ticket of the message
  uint64_t place = 0;               // receive: address of the bytes at the sender
  // receive: the slots of the pending parts, oldest first
  std::array<uint32_t, kMostParts> slots{};
  UcxHeader header;  // UCX reads it until the message is sent
  class UcxTransport* owner = nullptr;
  UcxTransfer* next = nullptr;
  UcxTransfer* before = nullptr;
};

/// A message that arrived before its receive was posted.
struct UcxArrival {
  uint32_t index = 0;
  int peer = -1;
  uint64_t tag = 0;
  uint32_t key = 0;
  uint32_t verdict = 0;
  size_t bytes = 0;
  uint64_t ticket = 0;  // 0 if a receive has taken the message over
  UcxHeader header;     // the announcement of a message that waits at the sender
  bool is_rendezvous = false;
  bool is_put = false;
  void* descriptor = nullptr;   // UCX's descriptor of a rendezvous, until it is received
  std::byte* buffer = nullptr;  // the bytes of an eager message
  UcxArrival* next = nullptr;
  UcxArrival* before = nullptr;
};

/// A control message, or a message of the protocol, until UCX has sent it.
struct UcxNote {
  uint32_t index = 0;
  int peer = -1;
  UcxHeader header;
  std::vector<std::byte> bytes;
  UcxTransfer* put = nullptr;  // for `landed`: the send whose bytes have landed
  class UcxTransport* owner = nullptr;
  UcxNote* next = nullptr;
  UcxNote* before = nullptr;
};

}  // namespace tutti
