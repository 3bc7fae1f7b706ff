#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "tutti/base/error.h"
#include "tutti/core/settings/version.h"

namespace tutti::c {

/// Returns `given` as a complete Struct. struct_size says how long the struct was in the header
/// that the program was compiled with. An earlier header's struct is shorter; its missing fields
/// are taken from `defaults`. A later header's struct is longer; the fields that this library does
/// not know must be zero, because it cannot do what they ask for. The error texts use `what` and
/// `start_from`.
template <class Struct>
Struct read_sized(const Struct* given, Struct defaults, const char* what, const char* start_from) {
  static_assert(std::is_trivially_copyable_v<Struct> && offsetof(Struct, struct_size) == 0);
  const size_t size = given->struct_size;
  // No version's struct is longer than this. The program did not set struct_size.
  constexpr size_t kLongest = 64 << 10;
  if (size < sizeof size || size % alignof(Struct) != 0 || size > kLongest)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("struct_size of {} is {} (expected {}); start from {}", what, size,
                            sizeof *given, start_from));
  const auto* bytes = reinterpret_cast<const std::byte*>(given);
  const auto* unknown = std::find_if(bytes + std::min(size, sizeof *given), bytes + size,
                                     [](std::byte byte) { return byte != std::byte{}; });
  if (unknown != bytes + size)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("byte {} of the {} of {} asks for something that came after version "
                            "{}, which has {} bytes; leave it zero, or use the newer library",
                            unknown - bytes, size, what, kVersion, sizeof *given));
  std::memcpy(&defaults, given, std::min(size, sizeof *given));
  defaults.struct_size = sizeof *given;
  return defaults;
}

/// Like read_sized(), but returns `given` itself if the program has this header's struct, which
/// costs one comparison. Otherwise the struct is put into `room`.
template <class Struct>
const Struct& known_part(const Struct* given, Struct& room, const Struct& defaults,
                         const char* what, const char* start_from) {
  if (given->struct_size == sizeof *given) return *given;
  room = read_sized(given, defaults, what, start_from);
  return room;
}

}  // namespace tutti::c
