#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>

#include "tutti/base/deadline.h"

namespace tutti {

/// The callbacks of one engine, for a thread that does nothing but run them, one after another. So
/// however long the program's code takes, the token and the background thread are free: this rank
/// does its part of all other operations and answers its peers' probes. It holds no more than what
/// the program has registered with Works that are over.
class CallbackQueue {
 public:
  /// `report` gets a line about each callback that throws; what `report` throws is dropped.
  explicit CallbackQueue(std::function<void(const std::string&)> report)
      : report_(std::move(report)) {}

  /// Any thread; never blocks. After end() the calling thread runs the callback itself.
  void push(std::function<void()> callback);
  /// The whole life of the thread that runs them: returns after end(), once the queue is empty.
  void run();
  void end();
  /// True once run() is about to return; false: the deadline passed before.
  bool wait_for_end(Deadline deadline);

 private:
  void call(std::function<void()> callback) noexcept;

  const std::function<void(const std::string&)> report_;
  std::mutex mutex_;  // guards the following
  std::condition_variable pushed_, over_;
  std::deque<std::function<void()>> queue_;
  bool is_ending_ = false;
  bool is_over_ = false;
};

}  // namespace tutti
