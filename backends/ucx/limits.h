#pragma once

#include <cstddef>
#include <cstdint>

#include "tutti/backends/ucx/ucx_message.h"

namespace tutti {

/// Of our active messages.
inline constexpr unsigned kMessageId = 7;
/// Messages up to this size travel at once if there is credit. Beyond it a copy costs more than
/// asking.
inline constexpr size_t kMostEager = 16 << 10;
/// A larger message into memory that is not mapped comes through slots of ours of this size, so
/// many in all.
inline constexpr size_t kSlotBytes = 256 << 10;
inline constexpr size_t kSlots = 8;
/// Into mapped memory it comes in parts of this size, so that a rank that puts a long message sees
/// to others in between.
inline constexpr size_t kPartBytes = 1 << 20;
/// Regions of one rank that one peer keeps attached.
inline constexpr size_t kMostAttached = 1024;
/// Larger messages to one peer that may wait for their receive at once.
inline constexpr uint32_t kMostAnnounced = 4096;
/// Cost of the control messages of one pair that were sent and not taken, and of those that wait at
/// the sender.
inline constexpr uint64_t kControlWindow = 64 << 20;
inline constexpr uint64_t kMostQueuedControl = 256 << 20;
/// Buffers of control messages that are kept for the next one.
inline constexpr size_t kMostSpareBytes = 64 << 10;

inline uint64_t control_cost(size_t bytes) { return bytes + sizeof(UcxHeader); }

}  // namespace tutti
