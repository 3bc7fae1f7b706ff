#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace tutti {

/// A thread that does one thing after another, in the order in which they were posted, and tells
/// when each is over.
class Worker {
 public:
  /// Owned by the operation that posts it, until it is over.
  struct Job {
    std::function<void()> run;
    std::string failure;  // what it threw
    /// Set last, by the worker's thread.
    std::atomic<bool> is_over{false};
  };

  /// `tell` runs after each job, `failed` after one threw, before it is over. Both on the thread.
  Worker(std::function<void()> tell, std::function<void()> failed);
  /// Everything posted must be over.
  ~Worker();

  void post(Job& job);
  /// Returns when the job is over, or will never run.
  void abandon(Job& job);

 private:
  void work();

  const std::function<void()> tell_;
  const std::function<void()> failed_;
  std::mutex mutex_;  // guards the following
  std::condition_variable changed_;
  std::deque<Job*> jobs_;
  bool ending_ = false;

  std::thread thread_;
};

}  // namespace tutti
