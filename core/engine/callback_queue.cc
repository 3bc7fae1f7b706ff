#include "tutti/core/engine/callback_queue.h"

#include <fmt/format.h>

#include <exception>
#include <utility>

namespace tutti {

void CallbackQueue::push(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (!is_ending_) {
      queue_.push_back(std::move(callback));
      pushed_.notify_one();
      return;
    }
  }
  call(std::move(callback));
}

void CallbackQueue::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    while (queue_.empty() && !is_ending_) pushed_.wait(lock);
    if (queue_.empty()) break;
    auto callback = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    call(std::move(callback));
    lock.lock();
  }
  is_over_ = true;
  over_.notify_all();
}

void CallbackQueue::end() {
  const std::lock_guard lock(mutex_);
  is_ending_ = true;
  pushed_.notify_one();
}

bool CallbackQueue::wait_for_end(Deadline deadline) {
  std::unique_lock lock(mutex_);
  return over_.wait_until(lock, deadline.when(), [this] { return is_over_; });
}

// The callback is destroyed in here too: what it has captured may be the last handle of a
// Communicator, so mutex_ is not held.
void CallbackQueue::call(std::function<void()> callback) noexcept {
  constexpr auto* kThen = "it was given up, all else goes on";
  try {
    try {
      callback();
    } catch (const std::exception& error) {
      report_(fmt::format("a callback threw: {}; {}", error.what(), kThen));
    } catch (...) {
      report_(fmt::format("a callback threw something that is no std::exception; {}", kThen));
    }
  } catch (...) {
    // Without the memory for that line it is lost.
  }
}

}  // namespace tutti
