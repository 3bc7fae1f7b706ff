#pragma once

#include <cstdint>

namespace tutti {

/// Decides whether the program's calls are accepted, whatever the node's phase is. A broken or
/// closed door refuses calls. While the door is breaking, the error is already known and Works are
/// about to fail. But operations may still use the program's memory, so calls are not refused yet.
///
///   open --close()--> closed --an error--> broken
///     |                                      ^
///     +--an error--> breaking ---------------+  (nothing uses that memory any more, or close())
enum class Door : uint8_t { open, breaking, broken, closed };

constexpr bool lets_in(Door door) { return door == Door::open || door == Door::breaking; }

/// Returns the door after the program has closed its communicator.
constexpr Door after_close(Door door) { return door == Door::open ? Door::closed : Door::broken; }

/// Returns the door after the node has set it to `said`, which is breaking or broken.
constexpr Door after_error(Door door, Door said) {
  return said == Door::broken || !lets_in(door) ? Door::broken : Door::breaking;
}

}  // namespace tutti
