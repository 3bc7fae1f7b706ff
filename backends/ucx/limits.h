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
/// Rendezvous to one peer that may wait for their receive at once.
inline constexpr uint32_t kMostAnnounced = 4096;
/// Cost of the control messages of one pair that were sent and not taken, and of those that wait at
/// the sender.
inline constexpr uint64_t kControlWindow = 64 << 20;
inline constexpr uint64_t kMostQueuedControl = 256 << 20;
/// Buffers of control messages that are kept for the next one.
inline constexpr size_t kMostSpareBytes = 64 << 10;

inline uint64_t control_cost(size_t bytes) { return bytes + sizeof(UcxHeader); }

}  // namespace tutti
