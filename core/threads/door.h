#pragma once

#include <cstdint>

namespace tutti {

/// Calls of the program see the door in place of the phase of the node. They are refused once it is
/// broken or closed. While it is breaking the error is known and Works are about to fail with it,
/// but the memory of pending operations may still be in use, so calls are not refused yet.
///
///   open --close()--> closed --an error--> broken
///     |                                      ^
///     +--an error--> breaking ---------------+  (nothing uses that memory any more, or close())
enum class Door : uint8_t { open, breaking, broken, closed };

/// Whether calls are taken.
constexpr bool lets_in(Door door) { return door == Door::open || door == Door::breaking; }

/// The door once the program has closed its communicator.
constexpr Door after_close(Door door) { return door == Door::open ? Door::closed : Door::broken; }

/// The door once the node has said that it is breaking or broken.
constexpr Door after_error(Door door, Door said) {
  return said == Door::broken || !lets_in(door) ? Door::broken : Door::breaking;
}

}  // namespace tutti
