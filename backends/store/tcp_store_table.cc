#include "tutti/backends/store/tcp_store_table.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "tutti/backends/store/store_checks.h"

namespace tutti {

void StoreTable::handle(const void* client, StoreRequest request, Answer answer) {
  const auto found = values_.find(request.key);
  const bool present = found != values_.end();
  switch (request.op) {
    case StoreOp::set:
      store(request.key, std::move(request.value));
      return answer({.id = request.id, .value = {}});
    case StoreOp::set_once:
      if (!present) store(request.key, std::move(request.value));
      return answer({.id = request.id, .value = values_[request.key]});
    case StoreOp::try_get:
      if (present) return answer({.id = request.id, .value = found->second});
      return answer({.id = request.id, .status = StoreStatus::absent, .value = {}});
    case StoreOp::get:
      if (present) return answer({.id = request.id, .value = found->second});
      return wait(client, std::move(request), std::move(answer));
    case StoreOp::add:
    case StoreOp::raise:
      return answer(count(request));
    case StoreOp::erase:
      values_.erase(request.key);
      return answer({.id = request.id, .value = {}});
    case StoreOp::erase_all:
      erase_keys_with(request.key, values_);
      return answer({.id = request.id, .value = {}});
  }
}

void StoreTable::forget(const void* client) {
  for (auto entry = waiters_.begin(); entry != waiters_.end();) {
    entry->second.remove_if([&](const auto& waiter) { return waiter->client == client; });
    entry = entry->second.empty() ? waiters_.erase(entry) : std::next(entry);
  }
}

void StoreTable::store(const std::string& key, std::string value) {
  auto& stored = values_[key] = std::move(value);
  auto waiting = waiters_.extract(key);
  if (waiting.empty()) return;
  for (auto& waiter : waiting.mapped()) waiter->answer({.id = waiter->id, .value = stored});
}

void StoreTable::wait(const void* client, StoreRequest request, Answer answer) {
  auto waiter = std::make_shared<Waiter>(
      Waiter{client, request.id, std::move(answer), asio::steady_timer(io_)});
  auto& queue = waiters_[request.key];
  queue.push_back(waiter);
  if (request.argument == StoreRequest::kNoTimeout) return;
  // The longest wait, in milliseconds. Larger values could overflow the clock.
  constexpr uint64_t kLongest = uint64_t{1} << 31;
  waiter->timer.expires_after(std::chrono::milliseconds(std::min(request.argument, kLongest)));
  waiter->timer.async_wait(
      [this, key = request.key, weak = std::weak_ptr(waiter)](ErrorStatus status) {
        const auto expired = weak.lock();
        if (status || !expired) return;  // the request was already answered or forgotten
        const auto entry = waiters_.find(key);
        entry->second.remove(expired);
        if (entry->second.empty()) waiters_.erase(entry);
        expired->answer({.id = expired->id, .status = StoreStatus::timeout, .value = {}});
      });
}

StoreReply StoreTable::count(const StoreRequest& request) {
  const auto found = values_.find(request.key);
  const auto text = found == values_.end() ? std::string() : found->second;
  const auto argument = static_cast<int64_t>(request.argument);
  try {
    const int64_t old = store_counter(request.key, text);
    const auto value =
        std::to_string(request.op == StoreOp::raise ? std::max(old, argument)
                                                    : counter_sum(request.key, old, argument));
    store(request.key, value);
    return {.id = request.id, .value = value};
  } catch (const Error&) {
    return {.id = request.id, .status = StoreStatus::not_a_number, .value = text};
  }
}

}  // namespace tutti
