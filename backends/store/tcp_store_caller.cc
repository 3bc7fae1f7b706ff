#include "tutti/backends/store/tcp_store_caller.h"

#include "tutti/backends/store/store_checks.h"
#include "tutti/base/error.h"
#include "tutti/base/text.h"

namespace tutti {

namespace {

// The longest time for the reply to a request that needs no waiting.
constexpr double kReplySeconds = 30;

}  // namespace

StoreReply StoreCaller::ask(StoreRequest request, Deadline deadline) {
  if (fork_guard_.forked())
    throw Error(ErrorCode::closed,
                "this store was opened before a fork; the child must open one of its own");
  return call(std::move(request), deadline);
}

void StoreCaller::set(const std::string& key, std::string_view value) {
  ask({.op = StoreOp::set, .key = key, .value = std::string(value)},
      Deadline::after(kReplySeconds));
}

std::string StoreCaller::set_once(const std::string& key, std::string_view value) {
  return ask({.op = StoreOp::set_once, .key = key, .value = std::string(value)},
             Deadline::after(kReplySeconds))
      .value;
}

std::optional<std::string> StoreCaller::try_get(const std::string& key) {
  auto reply =
      ask({.op = StoreOp::try_get, .key = key, .value = {}}, Deadline::after(kReplySeconds));
  if (reply.status == StoreStatus::absent) return {};
  return std::move(reply.value);
}

std::string StoreCaller::get(const std::string& key, Deadline deadline) {
  const int milliseconds = deadline.poll_milliseconds();
  const auto argument =
      milliseconds < 0 ? StoreRequest::kNoTimeout : static_cast<uint64_t>(milliseconds);
  auto reply = ask({.op = StoreOp::get, .argument = argument, .key = key, .value = {}}, deadline);
  if (reply.status == StoreStatus::timeout) throw_store_timeout(key);
  return std::move(reply.value);
}

int64_t StoreCaller::count(StoreOp op, const std::string& key, int64_t argument) {
  const auto reply =
      ask({.op = op, .argument = static_cast<uint64_t>(argument), .key = key, .value = {}},
          Deadline::after(kReplySeconds));
  const auto value = parse_integer(reply.value, INT64_MIN, INT64_MAX);
  if (reply.status == StoreStatus::not_a_number || !value) throw_no_counter(key, reply.value);
  return *value;
}

int64_t StoreCaller::add(const std::string& key, int64_t amount) {
  return count(StoreOp::add, key, amount);
}

int64_t StoreCaller::raise(const std::string& key, int64_t least) {
  return count(StoreOp::raise, key, least);
}

void StoreCaller::erase(const std::string& key) {
  ask({.op = StoreOp::erase, .key = key, .value = {}}, Deadline::after(kReplySeconds));
}

void StoreCaller::erase_all(const std::string& prefix) {
  ask({.op = StoreOp::erase_all, .key = prefix, .value = {}}, Deadline::after(kReplySeconds));
}

}  // namespace tutti
