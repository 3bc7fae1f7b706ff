#include "tutti/core/calls/persistent_offer.h"

#include <fmt/format.h>

#include <cstring>
#include <string_view>

namespace tutti {

namespace {

// The beginning of the message, which the three texts follow. `what`, `failure` and `identity` are
// the lengths of these texts.
struct Head {
  uint64_t board, data;
  DeviceHandle handle;
  int32_t device, code;
  uint32_t what, failure, identity;
};

constexpr uint32_t kLongestIdentity = 63;

}  // namespace

std::vector<std::byte> encode_offer(const PersistentOffer& offer) {
  Head head;
  std::memset(&head, 0, sizeof(head));
  head.board = offer.board;
  head.data = offer.data;
  head.handle = offer.handle;
  head.device = offer.device;
  head.code = static_cast<int32_t>(offer.code);
  const auto identity = offer.identity.substr(0, kLongestIdentity);
  head.what = static_cast<uint32_t>(offer.what.size());
  head.failure = static_cast<uint32_t>(offer.failure.size());
  head.identity = static_cast<uint32_t>(identity.size());
  std::vector<std::byte> bytes(sizeof(head));
  std::memcpy(bytes.data(), &head, sizeof(head));
  for (const std::string_view text : {std::string_view(offer.what), std::string_view(offer.failure),
                                      std::string_view(identity)}) {
    const auto as_bytes = std::as_bytes(std::span(text));
    bytes.insert(bytes.end(), as_bytes.begin(), as_bytes.end());
  }
  return bytes;
}

PersistentOffer decode_offer(int from, std::span<const std::byte> bytes) {
  Head head;
  const auto damaged = [&] {
    return Error(ErrorCode::corrupt_data,
                 fmt::format("what rank {} offered for a persistent allreduce is damaged", from))
        .with_rank(from);
  };
  if (bytes.size() < sizeof(head)) throw damaged();
  std::memcpy(&head, bytes.data(), sizeof(head));
  if (bytes.size() - sizeof(head) != uint64_t{head.what} + head.failure + head.identity ||
      head.identity > kLongestIdentity || head.device < 0 || head.code < 1 ||
      head.code > static_cast<int32_t>(ErrorCode::internal))
    throw damaged();
  std::string_view texts(reinterpret_cast<const char*>(bytes.data()) + sizeof(head),
                         bytes.size() - sizeof(head));
  const auto take = [&](size_t size) {
    const std::string text(texts.substr(0, size));
    texts.remove_prefix(size);
    return text;
  };
  PersistentOffer offer;
  offer.what = take(head.what);
  offer.failure = take(head.failure);
  offer.identity = take(head.identity);
  offer.code = static_cast<ErrorCode>(head.code);
  offer.device = head.device;
  offer.board = head.board;
  offer.data = head.data;
  offer.handle = head.handle;
  return offer;
}

}  // namespace tutti
