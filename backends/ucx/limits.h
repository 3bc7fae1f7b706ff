#pragma once

#include <cstddef>
#include <cstdint>

#include "tutti/backends/ucx/ucx_message.h"

namespace tutti {

/// The id of our active messages.
inline constexpr unsigned kMessageId = 7;
/// Messages of at most this size are sent immediately if there is credit. For a larger message,
/// copying it at the receiver would cost more than asking the receiver first.
inline constexpr size_t kMostEager = 16 << 10;
/// A larger message whose target is not in mapped memory passes through slots of this size. Each
/// rank has kSlots of them.
inline constexpr size_t kSlotBytes = 256 << 10;
inline constexpr size_t kSlots = 8;
/// A larger message whose target is in mapped memory is put there in parts of this size. Between
/// two parts the sender can serve other ranks.
inline constexpr size_t kPartBytes = 1 << 20;
/// The maximum number of regions of one rank that one peer keeps attached at the same time.
inline constexpr size_t kMostAttached = 1024;
/// The maximum number of announced messages to one peer that wait for their receive.
inline constexpr uint32_t kMostAnnounced = 4096;
/// Two bounds on the control messages to one peer. kControlWindow bounds the cost of the messages
/// that were sent and not yet taken. kMostQueuedControl bounds the cost of the messages that wait
/// at the sender.
inline constexpr uint64_t kControlWindow = 64 << 20;
inline constexpr uint64_t kMostQueuedControl = 256 << 20;
/// The largest buffer of a control message that is kept for reuse.
inline constexpr size_t kMostSpareBytes = 64 << 10;

inline uint64_t control_cost(size_t bytes) { return bytes + sizeof(UcxHeader); }

}  // namespace tutti
