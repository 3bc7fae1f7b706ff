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
///   eager     a whole message of moderate size; costs credit, and returns `ticket` of it: what its
///             sender is done with since it last told
///   announce  a message of `length` bytes waits at the sender under `ticket`
///   grant     the receiver's answer: send message `ticket` to my receive `tag`
///   data      the next `length` bytes for the receive `ticket`
///   refuse    the other answer: the message `ticket` is not wanted; forget it
///   withdraw  the sender takes the announced message `ticket` (its tag and key given) back
///   credit    the receiver is done with eager messages that cost `length`, and has nothing else to
///             send
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

  /// Bytes that follow the header.
  size_t payload() const {
    const bool has =
        type == FrameType::eager || type == FrameType::data || type == FrameType::control;
    return has ? static_cast<size_t>(length) : 0;
  }
};

inline constexpr size_t kFrameBytes = 40;

/// Messages up to this size, and up to a quarter of the credit, travel at once if there is credit:
/// a collective's receives are known in advance, so hardly any waits for its receive, and none
/// waits for an answer.
inline constexpr size_t kMaxEagerBytes = 1 << 20;
/// Larger ones travel in frames of at most this size, so that nothing waits long behind them.
inline constexpr size_t kMaxDataBytes = 1 << 20;
/// What the eager messages that wait for their receive, from one peer, may cost together; less
/// where there are many ranks.
inline constexpr uint64_t kMostCredit = 8 << 20;
uint64_t eager_credit(int ranks);
/// Announced messages of one peer that may wait at once.
inline constexpr uint32_t kMaxAnnounced = 1 << 16;

/// What keeping an eager message costs: its buffer, a power of two, and the record.
uint64_t eager_cost(uint64_t bytes);

using FrameBytes = std::array<std::byte, kFrameBytes>;
FrameBytes encode_frame(const FrameHeader& header);
/// Throws Error(corrupt_data) for what is no frame or is out of bounds.
FrameHeader decode_frame(std::span<const std::byte, kFrameBytes> bytes);

}  // namespace tutti
