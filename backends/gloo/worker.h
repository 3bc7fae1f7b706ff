#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace tutti {

/// A thread that runs jobs one after another, in the order in which they were posted, and reports
/// when each is over.
class Worker {
 public:
  /// Owned by the operation that posts it, which keeps it until it is over.
  struct Job {
    std::function<void()> run;
    std::string failure;  // the text of the exception that it threw
    /// Set last, by the worker's thread.
    std::atomic<bool> is_over{false};
  };

  /// `tell` runs after each job. `failed` runs after a job threw, before it is over. Both run on
  /// the worker's thread.
  Worker(std::function<void()> tell, std::function<void()> failed);
  /// All posted jobs must be over.
  ~Worker();

  void post(Job& job);
  /// Returns when the job is over or has been removed from the queue.
  void abandon(Job& job);

 private:
  void work();

  const std::function<void()> tell_;
  const std::function<void()> failed_;
  std::mutex mutex_;  // guards jobs_ and ending_
  std::condition_variable changed_;
  std::deque<Job*> jobs_;
  bool ending_ = false;

  std::thread thread_;
};

}  // namespace tutti
