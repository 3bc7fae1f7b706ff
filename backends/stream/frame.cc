#include "tutti/backends/stream/frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "tutti/base/little_endian.h"

namespace tutti {

namespace {

// The text "TUT" and the version of the protocol.
constexpr uint32_t kFrameMagic = 0x01545554;

uint64_t longest(FrameType type) {
  switch (type) {
    case FrameType::eager:
      return kMaxEagerBytes;
    case FrameType::announce:
      return uint64_t{1} << 62;
    case FrameType::data:
      return kMaxDataBytes;
    case FrameType::credit:
      return kMostCredit;
    case FrameType::control:
      return Transport::kMaxControlBytes;
    default:
      return 0;
  }
}

}  // namespace

uint64_t eager_credit(int ranks) {
  constexpr uint64_t kOfAllPeers = 64 << 20, kLeast = 1 << 20;
  return std::clamp(kOfAllPeers / static_cast<uint64_t>(std::max(ranks, 2)), kLeast, kMostCredit);
}

uint64_t eager_cost(uint64_t bytes) {
  constexpr uint64_t kRecord = 128;
  return kRecord + (bytes == 0 ? 0 : std::bit_ceil(std::max<uint64_t>(bytes, 64)));
}

FrameBytes encode_frame(const FrameHeader& header) {
  FrameBytes bytes;
  auto* at = put_number(bytes.data(), kFrameMagic);
  at = put_number(at, static_cast<uint32_t>(header.type));
  at = put_number(at, header.key);
  at = put_number(at, header.verdict);
  at = put_number(at, header.length);
  at = put_number(at, header.tag);
  put_number(at, header.ticket);
  return bytes;
}

FrameHeader decode_frame(std::span<const std::byte, kFrameBytes> bytes) {
  uint32_t magic = 0, type = 0;
  FrameHeader header;
  const auto* at = get_number(bytes.data(), magic);
  at = get_number(at, type);
  at = get_number(at, header.key);
  at = get_number(at, header.verdict);
  at = get_number(at, header.length);
  at = get_number(at, header.tag);
  get_number(at, header.ticket);
  if (magic != kFrameMagic)
    throw Error(
        ErrorCode::corrupt_data,
        fmt::format("it sent {:#010x} where a frame should begin ({:#010x})", magic, kFrameMagic));
  if (type < static_cast<uint32_t>(FrameType::eager) ||
      type > static_cast<uint32_t>(FrameType::goodbye))
    throw Error(ErrorCode::corrupt_data, fmt::format("it sent a frame of unknown type {}", type));
  header.type = static_cast<FrameType>(type);
  if (header.length > longest(header.type))
    throw Error(ErrorCode::corrupt_data,
                fmt::format("it sent a frame of type {} with length {}; at most {} is allowed",
                            type, header.length, longest(header.type)));
  return header;
}

}  // namespace tutti
