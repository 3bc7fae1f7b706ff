#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tutti/collectives/transport.h"

namespace tutti {

/// Two StreamCores send each other frames. Each frame is a header of kFrameBytes, little-endian,
/// and, for eager, data and control, `length` bytes of payload.
///
///   eager     a whole message of moderate size, for which its sender needs credit; `ticket` is the
///             amount of credit that the sender of the frame returns with it
///   announce  a message of `length` bytes waits at the sender under `ticket`
///   grant     the receiver's answer: send message `ticket` to my receive `tag`
///   data      the next `length` bytes for the receive `ticket`
///   refuse    the other answer: the receiver does not want message `ticket`; forget it
///   withdraw  the sender takes back the announced message `ticket`, which has this tag and key
///   credit    returns credit of `length`, if much is owed and no eager message returns it
///   control   a control message
///   goodbye   the sender leaves; nothing follows
enum class FrameType : uint8_t {
  eager = 1,
  announce,
  grant,
  data,
  refuse,
  withdraw,
  credit,
  control,
  goodbye
};

struct FrameHeader {
  FrameType type = FrameType::goodbye;
  uint32_t key = 0;
  uint32_t verdict = 0;
  uint64_t length = 0;
  uint64_t tag = 0;
  uint64_t ticket = 0;

  /// Returns the number of payload bytes that follow the header.
  size_t payload() const {
    const bool has =
        type == FrameType::eager || type == FrameType::data || type == FrameType::control;
    return has ? static_cast<size_t>(length) : 0;
  }
};

inline constexpr size_t kFrameBytes = 40;

/// Messages of at most this size, and of at most a quarter of the credit, are sent immediately
/// while credit is left. A collective posts its receives in advance. So few messages wait for their
/// receive, and small messages need no answer.
inline constexpr size_t kMaxEagerBytes = 1 << 20;
/// Larger messages travel in frames of at most this size, so that other messages need not wait
/// long.
inline constexpr size_t kMaxDataBytes = 1 << 20;
/// The largest credit that a peer gets. The credit bounds the total cost of a peer's eager messages
/// that wait for their receive. With many ranks eager_credit() is smaller.
inline constexpr uint64_t kMostCredit = 8 << 20;
uint64_t eager_credit(int ranks);
/// The maximum number of announced messages of one peer that wait at the same time.
inline constexpr uint32_t kMaxAnnounced = 1 << 16;

/// Returns the cost of an eager message that waits: the size of its buffer, a power of two, plus
/// that of its record.
uint64_t eager_cost(uint64_t bytes);

using FrameBytes = std::array<std::byte, kFrameBytes>;
FrameBytes encode_frame(const FrameHeader& header);
/// Decodes a frame header. Throws Error(corrupt_data) if the bytes are not a header or a field is
/// out of bounds.
FrameHeader decode_frame(std::span<const std::byte, kFrameBytes> bytes);

}  // namespace tutti
