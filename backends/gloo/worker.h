#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace tutti {

/// A thread that runs jobs one after another, in the order in which they were posted.
class Worker {
 public:
  /// A job belongs to the operation that posts it. The operation must keep the job until `is_over`
  /// is true.
  struct Job {
    std::function<void()> run;
    std::string failure;  // text of the exception that `run` threw, or empty
    /// The worker's thread sets this last.
    std::atomic<bool> is_over{false};
  };

  /// `tell` runs after each job. `failed` runs after a job has thrown, before the job's `is_over`
  /// is set. Both run on the worker's thread.
  Worker(std::function<void()> tell, std::function<void()> failed);
  /// All jobs must be over.
  ~Worker();

  void post(Job& job);
  /// Removes the job from the queue, or waits until it is over if it is already running.
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
