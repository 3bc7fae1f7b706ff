#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tutti/backends/stream/frame.h"
#include "tutti/backends/stream/intrusive.h"

namespace tutti {

/// A message that the user posted: one isend or irecv, from the call until test() released it.
struct Transfer {
  enum class Stage : uint8_t {
    unused,
    fresh,      // send: neither sent nor announced yet
    announced,  // send: waits for the peer's grant
    granted,    // send: has data to write; receive: waits for data under its ticket
    closing,    // send: its last frame is being written
    posted,     // receive: not matched
    filling,    // receive: an eager message is being read into it
    done,
    failed
  };

  bool over() const { return stage == Stage::done || stage == Stage::failed; }
  Ticket ticket() const { return Ticket{generation} << 32 | (index + 1); }

  uint32_t index = 0;
  uint32_t generation = 0;  // counts the uses of this slot, so that an old ticket is recognized
  Stage stage = Stage::unused;
  bool is_send = false;
  int peer = -1;
  uint64_t tag = 0;
  uint32_t key = 0;
  uint32_t verdict = 0;
  const std::byte* source = nullptr;  // send
  std::byte* target = nullptr;        // receive
  size_t bytes = 0;
  size_t moved = 0;   // bytes that finished frames have written or read
  Ticket remote = 0;  // the peer's ticket for the same message, once granted
  Transfer* next = nullptr;
  Transfer* before = nullptr;
};

/// A frame that waits to be written.
struct OutFrame {
  uint32_t index = 0;
  FrameType type = FrameType::control;
  FrameBytes header{};
  const std::byte* payload = nullptr;
  size_t payload_bytes = 0;
  size_t written = 0;            // bytes of header and payload
  uint64_t returned = 0;         // credit that it returns
  Transfer* transfer = nullptr;  // the send whose payload it is
  std::vector<std::byte> copy;  // the payload of a control message, or of a send that was cancelled
  OutFrame* next = nullptr;
  OutFrame* before = nullptr;

  size_t bytes() const { return kFrameBytes + payload_bytes; }
};

/// A message that arrived, or announced itself, before its receive was posted.
struct Arrival {
  uint32_t index = 0;
  int peer = -1;
  uint64_t tag = 0;
  uint32_t key = 0;
  uint32_t verdict = 0;
  size_t bytes = 0;
  bool announced = false;  // its bytes wait at the sender under `remote`
  bool complete = false;   // all its bytes are in the buffer
  Ticket remote = 0;
  std::byte* buffer = nullptr;
  Arrival* next = nullptr;
  Arrival* before = nullptr;
};

}  // namespace tutti
