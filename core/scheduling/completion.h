#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/sync.h"

namespace tutti {

using WorkCallback = std::function<void(std::exception_ptr)>;

/// The completion of a Work. Three kinds of threads use it: threads that finish its parts, threads
/// that wait, and threads that register callbacks.
///
///   pending --finish_part, all but the last--> pending --the last part--> done --reuse--> pending
///
/// A callback runs once. If it was registered before the Work is done, the thread that finishes the
/// last part receives it to run. Otherwise the registering thread runs it. A callback may drop the
/// last handle of the Work.
template <class Sync = Threads>
class CompletionOf {
 public:
  explicit CompletionOf(int parts) : parts_left_(parts) {}

  bool done() const { return done_.load(std::memory_order_acquire); }
  /// Returns the error and marks it as seen. The Work must be done. Its error does not change after
  /// that.
  const std::optional<Error>& see_error() {
    seen_.store(true, std::memory_order_relaxed);
    Sync::reads(&error_);
    return error_;
  }
  /// Returns the error if no thread has seen it, else null. The Work must be done, or the caller
  /// must have the only handle.
  const Error* unseen_error() const {
    Sync::reads(&error_);
    return error_ && !seen_.load(std::memory_order_relaxed) ? &*error_ : nullptr;
  }
  std::exception_ptr exception() const {
    const std::lock_guard lock(mutex_);
    Sync::reads(&error_);
    return error_ ? std::make_exception_ptr(*error_) : nullptr;
  }

  /// Finishes one part. Only the first error is kept. Returns true for the last part. In that case
  /// it calls `open` just before the Work is done, and puts the callbacks that must run into
  /// `callbacks`.
  template <class Open>
  bool finish_part(std::optional<Error> error, std::vector<WorkCallback>& callbacks,
                   Open open) noexcept {
    if (error) {
      const std::lock_guard lock(mutex_);
      Sync::writes(&error_);
      if (!error_) error_.emplace(std::move(*error));
    }
    if (parts_left_.fetch_sub(1) != 1) return false;
    open();
    const std::lock_guard lock(mutex_);
    done_.store(true, std::memory_order_release);
    Sync::writes(&callbacks_);
    callbacks = std::exchange(callbacks_, {});
    return true;
  }

  /// Keeps the callback until the Work is done and returns true. Returns false if the Work is
  /// already done; the caller must then call the callback with exception().
  bool then(WorkCallback& callback) {
    const std::lock_guard lock(mutex_);
    if (!done_.load(std::memory_order_relaxed)) {
      Sync::writes(&callbacks_);
      callbacks_.push_back(std::move(callback));
      seen_.store(true, std::memory_order_relaxed);
      return true;
    }
    seen_.store(true, std::memory_order_relaxed);
    return false;
  }

  /// Makes the Work pending again, with `parts` parts. The caller must have the only handle. Taking
  /// the lock makes all earlier writes of other threads visible.
  void reuse(int parts) {
    const std::lock_guard lock(mutex_);
    parts_left_.store(parts, std::memory_order_relaxed);
    done_.store(false, std::memory_order_relaxed);
    seen_.store(false, std::memory_order_relaxed);
    Sync::writes(&error_);
    error_.reset();
  }

  /// Guards the error, and other data that the owner adds.
  auto& mutex() const { return mutex_; }

 private:
  typename Sync::template Atomic<int> parts_left_;
  typename Sync::template Atomic<bool> done_{false};
  typename Sync::template Atomic<bool> seen_{false};
  mutable typename Sync::Mutex mutex_;  // guards the members below
  std::optional<Error> error_;          // does not change once the Work is done
  std::vector<WorkCallback> callbacks_;
};

using Completion = CompletionOf<>;

}  // namespace tutti
