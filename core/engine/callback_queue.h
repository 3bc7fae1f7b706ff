#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

#include "tutti/base/deadline.h"
#include "tutti/base/sync.h"

namespace tutti {

using CallbackReport = std::function<void(const std::string&)>;

/// Calls and destroys the callback. If it throws, `report` receives a line about the exception.
/// Exceptions from `report` are dropped.
void run_callback(std::function<void()> callback, const CallbackReport& report) noexcept;

/// The callbacks of one engine, which a separate thread runs one after another. However long the
/// program's code takes, other threads can run the engine. So this rank does its part of all other
/// operations and answers its peers' pings. The queue is bounded by the number of callbacks that
/// the program has registered.
template <class Sync = Threads>
class CallbackQueueOf {
 public:
  explicit CallbackQueueOf(CallbackReport report) : report_(std::move(report)) {}

  /// Adds a callback. Any thread may call it. Never blocks. After end() the calling thread runs the
  /// callback itself.
  void push(std::function<void()> callback) {
    {
      const std::lock_guard lock(mutex_);
      if (!is_ending_) {
        Sync::writes(&queue_);
        queue_.push_back(std::move(callback));
        pushed_.notify_one();
        return;
      }
    }
    run_callback(std::move(callback), report_);
  }

  /// Runs callbacks until end() was called and the queue is empty. The callback thread runs only
  /// this function. It also destroys each callback without the lock, because the callback may have
  /// captured the last handle of a Communicator.
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      while (queue_.empty() && !is_ending_) pushed_.wait(lock);
      if (queue_.empty()) break;
      Sync::writes(&queue_);
      auto callback = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      run_callback(std::move(callback), report_);
      lock.lock();
    }
    is_over_ = true;
    over_.notify_all();
  }

  void end() {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
    pushed_.notify_one();
  }

  /// Returns true once run() is about to return, false if the deadline passes first.
  bool wait_for_end(Deadline deadline) {
    std::unique_lock lock(mutex_);
    return over_.wait_until(lock, deadline.when(), [this] { return is_over_; });
  }

 private:
  const CallbackReport report_;
  typename Sync::Mutex mutex_;  // guards the members below
  typename Sync::Condition pushed_, over_;
  std::deque<std::function<void()>> queue_;
  bool is_ending_ = false;
  bool is_over_ = false;
};

using CallbackQueue = CallbackQueueOf<>;

}  // namespace tutti
