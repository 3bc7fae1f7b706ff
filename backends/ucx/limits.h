#pragma once

#include <cstddef>
#include <cstdint>

#include "tutti/backends/ucx/ucx_message.h"

namespace tutti {

/// The id of our active messages.
inline constexpr unsigned kMessageId = 7;
/// Messages up to this size are sent at once if there is credit. For a larger one the copy would
/// cost more than asking first.
inline constexpr size_t kMostEager = 16 << 10;
/// A larger message into memory that is not mapped passes through slots of this size. There are
/// kSlots of them.
inline constexpr size_t kSlotBytes = 256 << 10;
inline constexpr size_t kSlots = 8;
/// Into mapped memory it arrives in parts of this size, so that a rank that puts a long message can
/// serve others in between.
inline constexpr size_t kPartBytes = 1 << 20;
/// The most regions of one rank that one peer keeps attached.
inline constexpr size_t kMostAttached = 1024;
/// The most larger messages to one peer that may wait for their receive at once.
inline constexpr uint32_t kMostAnnounced = 4096;
/// Bounds of one pair's control messages: the cost of those that were sent and not taken, and of
/// those that wait at the sender.
inline constexpr uint64_t kControlWindow = 64 << 20;
inline constexpr uint64_t kMostQueuedControl = 256 << 20;
/// The largest buffer of a control message that is kept for reuse.
inline constexpr size_t kMostSpareBytes = 64 << 10;

inline uint64_t control_cost(size_t bytes) { return bytes + sizeof(UcxHeader); }

}  // namespace tutti
