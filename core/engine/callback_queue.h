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

/// Calls and destroys the callback. `report` gets a line about one that throws; what `report`
/// throws is dropped.
void run_callback(std::function<void()> callback, const CallbackReport& report) noexcept;

/// The callbacks of one engine, for a thread that does nothing but run them, one after another. So
/// however long the program's code takes, the token and the background thread are free: this rank
/// does its part of all other operations and answers its peers' probes. It holds no more than what
/// the program has registered with Works that are over.
template <class Sync = Threads>
class CallbackQueueOf {
 public:
  explicit CallbackQueueOf(CallbackReport report) : report_(std::move(report)) {}

  /// Any thread; never blocks. After end() the calling thread runs the callback itself.
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

  /// The whole life of the thread that runs them: returns after end(), once the queue is empty. A
  /// callback is destroyed without the lock too: what it has captured may be the last handle of a
  /// Communicator.
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

  /// True once run() is about to return; false: the deadline passed before.
  bool wait_for_end(Deadline deadline) {
    std::unique_lock lock(mutex_);
    return over_.wait_until(lock, deadline.when(), [this] { return is_over_; });
  }

 private:
  const CallbackReport report_;
  typename Sync::Mutex mutex_;  // guards the following
  typename Sync::Condition pushed_, over_;
  std::deque<std::function<void()>> queue_;
  bool is_ending_ = false;
  bool is_over_ = false;
};

using CallbackQueue = CallbackQueueOf<>;

}  // namespace tutti
