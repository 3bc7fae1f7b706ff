#include "tutti/backends/gloo/worker.h"

#include <algorithm>

#include "tutti/backends/gloo/signals.h"

namespace tutti {

Worker::Worker(std::function<void()> tell, std::function<void()> failed)
    : tell_(std::move(tell)), failed_(std::move(failed)), thread_([this] { work(); }) {}

Worker::~Worker() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Worker::post(Job& job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(&job);
  }
  changed_.notify_all();
}

void Worker::abandon(Job& job) {
  std::unique_lock lock(mutex_);
  // The first job in the queue is the one that runs.
  const auto found = std::find(jobs_.begin(), jobs_.end(), &job);
  if (found == jobs_.end()) return;
  if (found != jobs_.begin()) {
    jobs_.erase(found);
  } else {
    changed_.wait(lock, [&] { return jobs_.empty() || jobs_.front() != &job; });
  }
}

void Worker::work() {
  const BrokenPipesIgnored ignored;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ending_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    Job& job = *jobs_.front();
    lock.unlock();
    try {
      job.run();
    } catch (const std::exception& error) {
      job.failure = error.what();
      failed_();
    }
    lock.lock();
    jobs_.pop_front();
    job.is_over.store(true, std::memory_order_release);
    lock.unlock();
    changed_.notify_all();
    tell_();
    lock.lock();
  }
}

}  // namespace tutti
