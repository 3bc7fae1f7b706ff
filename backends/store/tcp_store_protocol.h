#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace tutti {

/// The scope of handshakes with the TCP store (HandshakeTerms::scope).
inline constexpr std::string_view kTcpStoreScope = "store";

enum class StoreOp : uint8_t { set = 1, set_once, try_get, get, add, raise, erase, erase_all };

struct StoreRequest {
  static constexpr uint64_t kNoTimeout = std::numeric_limits<uint64_t>::max();

  uint64_t id = 0;  // the client chooses it, and the reply repeats it
  StoreOp op = StoreOp::set;
  uint64_t argument = 0;  // get: milliseconds to wait; add: the amount; raise: the least value
  std::string key;        // erase_all: the prefix of the keys
  std::string value;
};

enum class StoreStatus : uint8_t { ok = 0, absent, timeout, not_a_number };

struct StoreReply {
  uint64_t id = 0;
  StoreStatus status = StoreStatus::ok;
  std::string value;
};

inline constexpr size_t kMaxStoreKeyBytes = 1 << 10;
inline constexpr size_t kMaxStoreValueBytes = 1 << 20;

/// A frame is a 32-bit length, followed by that many bytes. A longer frame is refused without
/// reading it.
inline constexpr size_t kStoreFrameHeader = 4;
inline constexpr size_t kMaxStoreFrame = kMaxStoreKeyBytes + kMaxStoreValueBytes + 64;

/// These functions return a whole frame with its length. encode(request) throws
/// Error(invalid_argument) for a key or a value beyond the bounds.
std::string encode(const StoreRequest& request);
std::string encode(const StoreReply& reply);

/// Returns the length of the frame whose header this is. Throws Error(corrupt_data) if the length
/// is out of bounds.
size_t decode_frame_length(std::string_view header);
/// These functions decode a frame without its length. They throw Error(corrupt_data).
StoreRequest decode_request(std::string_view frame);
StoreReply decode_reply(std::string_view frame);

}  // namespace tutti
