#pragma once

#include <ucp/api/ucp.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tutti/collectives/transport.h"

namespace tutti {

/// What travels between two UcxTransports is active messages, each with one of these as its header:
///
///   eager       a whole message of moderate size; costs credit
///   rendezvous  a message whose bytes wait at the sender, who calls it `ticket`, until they are
///               received or refused; UCX tells the sender of either
///   announce    the same where the sender can put: its bytes wait for places; if `region` is not
///               0 they can also be read where they are, at `address` in that region of the sender,
///               whose remote key comes along when it is new, and written if they are lent; if they
///               have been written, then to memory that the receiver lent, at its `address`
///   place       `length` more bytes of the announced message `ticket` may be put at `address` in
///               the receiver's region `key`, whose remote key comes along when it is new; the
///               receiver calls the receive `tag`
///   landed      that many bytes of the receive `ticket` have been put; 0: no more come
///   taken       nothing (more) is wanted of the announced message `ticket`
///   forget      the region `key` is gone
///   withdraw    the sender would like to have the message `ticket` (its tag given) back
///   withdrawn   the answer: the message `ticket` is gone (`length` 1), or comes through (0)
///   credit      the receiver is done with eager messages that cost `length`, and with control
///               messages that cost `ticket`
///   control     a control message
///   hello       the first one to a peer; with the remote key of region `key`, where `address` is
///   attached    the answer: the sender has attached that region, or never will
///   goodbye     the sender leaves on purpose, and all that it sent comes before
///   farewell    the answer: everything has come
///   gone        the sender leaves without a goodbye
///
/// Those of one pair of ranks keep their order.
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

/// Ranks of one communicator run the same build on machines of one kind (UCX asks for as much).
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

/// What a rank tells one peer in mapped memory: whether it has taken back what the peer may put
/// into or read, and how many of the peer's loans it is writing to. Either the peer sees that it
/// writes, and waits, or it sees that the peer has given it up, and does not write.
struct UcxSign {
  std::atomic<bool> has_given_up{false};
  std::atomic<uint32_t> writes{0};
};

/// Parts of one message that may be put at once.
inline constexpr size_t kMostParts = 4;

/// One isend or irecv, from the call until test() released it.
struct UcxTransfer {
  enum class Stage : uint8_t {
    unused,
    queued,   // send: waits for its turn
    running,  // UCX, or a peer, uses the memory
    posted,   // receive: not matched
    lent,     // receive: the user reads it where the sender has it
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
  bool is_put = false;         // and are put by it
  bool is_starved = false;     // receive: waits for a slot
  bool doomed = false;         // fails, whatever UCX says
  bool awaits_answer = false;  // send: to a withdraw
  bool is_sent = false;        // UCX is done with it while the answer is awaited
  bool is_lent = false;        // receive: what is viewed may be overwritten,
  bool writes = false;         // and is
  int peer = -1;
  uint64_t tag = 0;
  uint32_t key = 0;
  uint32_t verdict = 0;
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  size_t bytes = 0;
  // Of what is put:
  size_t placed = 0;                         // bytes that have a place
  size_t landed = 0;                         // that are there
  uint32_t parts = 0;                        // that have a place and are not there
  uint32_t region = 0;                       // receive: of the target; 0: none
  bool may_view = false;                     // receive: the user would read it at the sender
  const std::byte* view = nullptr;           // receive: does so, here
  uint64_t remote = 0;                       // receive: what the sender calls the message,
  uint64_t place = 0;                        // and where it has the bytes
  std::array<uint32_t, kMostParts> slots{};  // receive: of the parts, oldest first
  UcxHeader header;                          // UCX reads it until the message is sent
  class UcxTransport* owner = nullptr;
  UcxTransfer* next = nullptr;
  UcxTransfer* before = nullptr;
};

/// A message that came before its receive was posted.
struct UcxArrival {
  uint32_t index = 0;
  int peer = -1;
  uint64_t tag = 0;
  uint32_t key = 0;
  uint32_t verdict = 0;
  size_t bytes = 0;
  uint64_t ticket = 0;  // 0: a transfer is being made for it
  UcxHeader header;     // of what waits at the sender
  bool is_rendezvous = false;
  bool is_put = false;
  void* descriptor = nullptr;   // of a rendezvous, until it is received
  std::byte* buffer = nullptr;  // of the bytes of an eager message
  UcxArrival* next = nullptr;
  UcxArrival* before = nullptr;
};

/// A control message, or one of the protocol's own, until UCX is done with it.
struct UcxNote {
  uint32_t index = 0;
  int peer = -1;
  UcxHeader header;
  std::vector<std::byte> bytes;
  UcxTransfer* put = nullptr;  // landed: what it tells of
  class UcxTransport* owner = nullptr;
  UcxNote* next = nullptr;
  UcxNote* before = nullptr;
};

}  // namespace tutti
