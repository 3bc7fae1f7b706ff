#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tutti/backends/stream/frame.h"
#include "tutti/backends/stream/intrusive.h"

namespace tutti {

/// An isend or irecv of the user, from that call until test() releases it.
struct Transfer {
  enum class Stage : uint8_t {
    unused,
    fresh,      // send: neither sent nor announced yet
    announced,  // send: waits for the peer's grant
    granted,    // send: may write data; receive: waits for the data
    closing,    // send: its last frame is being written
    posted,     // receive: no message has arrived for it yet
    filling,    // receive: an eager message is being read into it
    done,
    failed
  };

  bool over() const { return stage == Stage::done || stage == Stage::failed; }
  Ticket ticket() const { return Ticket{generation} << 32 | (index + 1); }

  uint32_t index = 0;
  uint32_t generation = 0;  // counts the uses of this record, so that an old ticket is recognized
  Stage stage = Stage::unused;
  bool is_send = false;
  int peer = -1;
  uint64_t tag = 0;
  uint32_t key = 0;
  uint32_t verdict = 0;
  const std::byte* source = nullptr;  // send: memory of the message
  std::byte* target = nullptr;        // receive: memory for the message
  size_t bytes = 0;
  size_t moved = 0;   // bytes that completed frames have written or read
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
  size_t written = 0;            // bytes of header and payload that are written
  uint64_t returned = 0;         // credit that the frame returns
  Transfer* transfer = nullptr;  // the send whose payload the frame carries
  std::vector<std::byte> copy;   // payload of a control message or of a cancelled send
  OutFrame* next = nullptr;
  OutFrame* before = nullptr;

  size_t bytes() const { return kFrameBytes + payload_bytes; }
};

/// A message that arrived, or was announced, before its receive was posted.
struct Arrival {
  uint32_t index = 0;
  int peer = -1;
  uint64_t tag = 0;
  uint32_t key = 0;
  uint32_t verdict = 0;
  size_t bytes = 0;
  bool announced = false;  // the bytes wait at the sender, under ticket `remote`
  bool complete = false;   // all bytes are in the buffer
  Ticket remote = 0;
  std::byte* buffer = nullptr;
  Arrival* next = nullptr;
  Arrival* before = nullptr;
};

}  // namespace tutti
