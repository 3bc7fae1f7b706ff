#include "tutti/backends/store/tcp_store_protocol.h"

#include <fmt/format.h>

#include "tutti/backends/store/store_checks.h"
#include "tutti/base/error.h"
#include "tutti/base/little_endian.h"

namespace tutti {

namespace {

constexpr size_t kRequestBytes = 8 + 1 + 8 + 2;  // id, op, argument, key length
constexpr size_t kReplyBytes = 8 + 1;            // id, status

std::string framed(std::string body) {
  std::string frame;
  frame.reserve(kStoreFrameHeader + body.size());
  append_number(frame, static_cast<uint32_t>(body.size()));
  return frame += body;
}

[[noreturn]] void refuse(std::string_view what) {
  throw Error(ErrorCode::corrupt_data, fmt::format("damaged frame of the TCP store: {}", what));
}

}  // namespace

std::string encode(const StoreRequest& request) {
  check_store_entry(request.key, request.value);
  std::string body;
  append_number(body, request.id);
  append_number(body, static_cast<uint8_t>(request.op));
  append_number(body, request.argument);
  append_number(body, static_cast<uint16_t>(request.key.size()));
  body += request.key;
  body += request.value;
  return framed(std::move(body));
}

std::string encode(const StoreReply& reply) {
  std::string body;
  append_number(body, reply.id);
  append_number(body, static_cast<uint8_t>(reply.status));
  body += reply.value;
  return framed(std::move(body));
}

size_t decode_frame_length(std::string_view header) {
  const auto length = take_number<uint32_t>(header);
  if (length > kMaxStoreFrame) refuse(fmt::format("length {}", length));
  return length;
}

StoreRequest decode_request(std::string_view frame) {
  if (frame.size() < kRequestBytes) refuse(fmt::format("a request of {} bytes", frame.size()));
  StoreRequest request;
  request.id = take_number<uint64_t>(frame);
  request.op = static_cast<StoreOp>(take_number<uint8_t>(frame));
  request.argument = take_number<uint64_t>(frame);
  const auto key_bytes = take_number<uint16_t>(frame);
  if (request.op < StoreOp::set || request.op > StoreOp::erase_all)
    refuse(fmt::format("operation {}", static_cast<int>(request.op)));
  if (key_bytes == 0 || key_bytes > kMaxStoreKeyBytes || key_bytes > frame.size())
    refuse(fmt::format("a key of {} bytes", key_bytes));
  request.key = frame.substr(0, key_bytes);
  request.value = frame.substr(key_bytes);
  if (request.value.size() > kMaxStoreValueBytes)
    refuse(fmt::format("a value of {} bytes", request.value.size()));
  return request;
}

StoreReply decode_reply(std::string_view frame) {
  if (frame.size() < kReplyBytes) refuse(fmt::format("a reply of {} bytes", frame.size()));
  StoreReply reply;
  reply.id = take_number<uint64_t>(frame);
  reply.status = static_cast<StoreStatus>(take_number<uint8_t>(frame));
  if (reply.status > StoreStatus::not_a_number)
    refuse(fmt::format("status {}", static_cast<int>(reply.status)));
  reply.value = frame;
  return reply;
}

}  // namespace tutti
