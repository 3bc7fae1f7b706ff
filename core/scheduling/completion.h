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

/// The end of a Work. Three kinds of threads take part in it: those that finish its parts, those
/// that wait, and those that register callbacks.
///
///   pending --finish_part, all but the last--> pending --the last part--> done --reuse--> pending
///
/// A callback runs once. If it was registered before the end, the thread that finishes the last
/// part hands it over; otherwise the registering thread runs it. A callback that runs, or is in
/// another thread's hands, may drop the last handle.
template <class Sync = Threads>
class CompletionOf {
 public:
  explicit CompletionOf(int parts) : parts_left_(parts) {}

  bool done() const { return done_.load(std::memory_order_acquire); }
  /// Returns the error and marks it as seen. Requires that the Work is done; the error is constant
  /// then.
  const std::optional<Error>& see_error() {
    seen_.store(true, std::memory_order_relaxed);
    Sync::reads(&error_);
    return error_;
  }
  /// Returns the error if no thread has seen it, else null. Requires that the Work is done, or that
  /// the caller has the only handle.
  const Error* unseen_error() const {
    Sync::reads(&error_);
    return error_ && !seen_.load(std::memory_order_relaxed) ? &*error_ : nullptr;
  }
  std::exception_ptr exception() const {
    const std::lock_guard lock(mutex_);
    Sync::reads(&error_);
    return error_ ? std::make_exception_ptr(*error_) : nullptr;
  }

  /// Finishes one part. A second error is dropped. Returns true for the last part: `open` was then
  /// called just before the end, and `callbacks` has the callbacks that must run.
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

  /// Returns true if the callback is kept until the end. Returns false if the Work is done already;
  /// the caller then calls the callback with exception().
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

  /// Starts again with `parts` parts. The caller has the only handle. The lock makes visible what
  /// other threads have done with their handles.
  void reuse(int parts) {
    const std::lock_guard lock(mutex_);
    parts_left_.store(parts, std::memory_order_relaxed);
    done_.store(false, std::memory_order_relaxed);
    seen_.store(false, std::memory_order_relaxed);
    Sync::writes(&error_);
    error_.reset();
  }

  /// Guards the error, and whatever the owner adds.
  auto& mutex() const { return mutex_; }

 private:
  typename Sync::template Atomic<int> parts_left_;
  typename Sync::template Atomic<bool> done_{false};
  typename Sync::template Atomic<bool> seen_{false};
  mutable typename Sync::Mutex mutex_;  // guards the following
  std::optional<Error> error_;          // constant once done
  std::vector<WorkCallback> callbacks_;
};

using Completion = CompletionOf<>;

}  // namespace tutti
