#pragma once

#include <ucp/api/ucp.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tutti/collectives/transport.h"

namespace tutti {

/// Two UcxTransports exchange active messages. Each has one of these types in its header:
///
///   eager       a whole message of moderate size; it costs credit
///   rendezvous  a message whose bytes wait at the sender, under its `ticket`, until they are
///               received or refused; UCX reports either to the sender
///   announce    a message whose bytes wait at the sender, which can put them. If `region` is not
///               0, the receiver can also read them at `address` in that region of the sender. The
///               region's remote key comes along if it is new. If the bytes are lent, the receiver
///               may overwrite them. If they are already written, `address` is where: in memory
///               that the receiver lent.
///   place       `length` more bytes of the announced message `ticket` may be put at `address` in
///               the receiver's region `key`, whose remote key comes along if it is new; `tag` is
///               the receiver's ticket
///   landed      `length` bytes of the receive `ticket` have been put; 0: no more will be
///   taken       the receiver needs nothing (more) of the announced message `ticket`
///   forget      the region `key` is gone
///   withdraw    the sender asks to take back the message `ticket` (its tag given)
///   withdrawn   the answer: the message `ticket` is gone (`length` 1) or will be received (0)
///   credit      the receiver is done with eager messages that cost `length` and with control
///               messages that cost `ticket`
///   control     a control message
///   hello       the first message to a peer: the sender's sign is at `address` in its region
///               `key`, whose remote key comes along
///   attached    the answer: the sender has attached that region, or never will
///   goodbye     the sender leaves on purpose; all its messages precede this one
///   farewell    the answer: everything has arrived
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

/// Ranks of one communicator run the same build on machines of one kind, which UCX requires too.
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

/// A rank publishes one sign per peer, in memory that the peer has mapped: whether the rank has
/// taken back the memory that the peer may put into or read, and how many of the peer's loans the
/// rank is writing to. A writer raises its own `writes` first and then reads the peer's
/// `has_given_up`. A rank that gives up sets its own `has_given_up` first and then reads the peer's
/// `writes`. So either the rank that gives up sees the write and waits, or the writer sees
/// `has_given_up` and does not write.
struct UcxSign {
  std::atomic<bool> has_given_up{false};
  std::atomic<uint32_t> writes{0};
};

/// The most parts of one message that may be put at once.
inline constexpr size_t kMostParts = 4;

/// One isend or irecv, from the call until test() releases it.
struct UcxTransfer {
  enum class Stage : uint8_t {
    unused,
    queued,   // send: waits for its turn
    running,  // UCX, or a peer, uses the memory
    posted,   // receive: not matched
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
  bool is_rendezvous = false;  // the bytes wait at the sender
  bool is_put = false;         // the sender puts the bytes
  bool is_starved = false;     // receive: waits for a slot
  bool doomed = false;         // fails, whatever UCX reports
  bool awaits_answer = false;  // send: a withdraw is not answered yet
  bool is_sent = false;        // UCX is done with it while the answer is awaited
  bool is_lent = false;        // receive: the viewed memory may be overwritten
  bool writes = false;         // receive: this rank overwrites it
  int peer = -1;
  uint64_t tag = 0;
  uint32_t key = 0;
  uint32_t verdict = 0;
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  size_t bytes = 0;
  // The next members are for messages that are put.
  size_t placed = 0;                // bytes that the receiver has given memory for
  size_t landed = 0;                // bytes that have arrived
  uint32_t parts = 0;               // parts that have memory and have not arrived
  uint32_t region = 0;              // receive: the region of the target; 0: none
  bool may_view = false;            // receive: the user accepts a view of the sender's memory
  const std::byte* view = nullptr;  // receive: the view, if there is one
  uint64_t remote = 0;              // receive: the sender's ticket of the message
  uint64_t place = 0;               // receive: the sender's address of the bytes
  std::array<uint32_t, kMostParts> slots{};  // receive: the slots of the parts, oldest first
  UcxHeader header;                          // UCX reads it until the message is sent
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
  uint64_t ticket = 0;  // 0: a receive has taken it over
  UcxHeader header;     // the announcement of a message that waits at the sender
  bool is_rendezvous = false;
  bool is_put = false;
  void* descriptor = nullptr;   // UCX's descriptor of a rendezvous, until it is received
  std::byte* buffer = nullptr;  // the bytes of an eager message
  UcxArrival* next = nullptr;
  UcxArrival* before = nullptr;
};

/// A control message, or a message of the protocol itself, until UCX is done with it.
struct UcxNote {
  uint32_t index = 0;
  int peer = -1;
  UcxHeader header;
  std::vector<std::byte> bytes;
  UcxTransfer* put = nullptr;  // landed: the send that it belongs to
  class UcxTransport* owner = nullptr;
  UcxNote* next = nullptr;
  UcxNote* before = nullptr;
};

}  // namespace tutti
