#include "tutti/adapters/torch/group_work.h"

#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "tutti/base/error.h"

namespace tutti::torch {

/// Shared with the callbacks of the Works, which outlive a GroupWork that was dropped. In here,
/// Work is the base class.
class GroupWork::State {
 public:
  State(CallUnderWay call, std::chrono::milliseconds timeout)
      : call_(std::move(call)), works_(call_.works), timeout_(timeout) {}

  static void begin(const std::shared_ptr<State>& state) {
    if (state->works_.empty()) state->complete();
    for (auto& work : state->works_)
      work.then([state](std::exception_ptr) { state->complete_if_over(); });
  }

  bool complete_if_over() {
    if (!std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work.done(); }))
      return false;
    complete();
    return true;
  }

  void wait(std::chrono::milliseconds given) {
    const auto time = given.count() > 0 ? given : timeout_;
    const auto deadline = Deadline::after(std::chrono::duration<double>(time).count());
    for (auto& work : works_) {
      try {
        work.wait(deadline);
      } catch (const Error&) {
        if (!work.done()) throw;
      }
    }
    complete();
    const std::lock_guard lock(mutex_);
    if (error_) std::rethrow_exception(error_);
  }

  std::exception_ptr error() const {
    const std::lock_guard lock(mutex_);
    return error_;
  }
  bool is_over() const {
    const std::lock_guard lock(mutex_);
    return is_over_;
  }
  const std::vector<::at::Tensor>& outputs() const { return call_.outputs; }

  ::c10::intrusive_ptr<::c10::ivalue::Future> future() {
    std::unique_lock lock(mutex_);
    if (!future_) {
      future_ = ::c10::make_intrusive<::c10::ivalue::Future>(
          ::c10::ListType::create(::c10::TensorType::get()));
      if (is_over_) end_future(lock);
    }
    return future_;
  }

 private:
  // Once all Works are over. The first thread to come does it, the others wait for it.
  void complete() {
    std::unique_lock lock(mutex_);
    if (is_over_) return;
    try {
      for (auto& work : works_) work.wait();
      if (call_.finish) call_.finish();
    } catch (...) {
      error_ = std::current_exception();
    }
    call_.finish = nullptr;
    call_.inputs.clear();
    is_over_ = true;
    if (future_) end_future(lock);
  }

  // Without the lock: what hangs on it may ask for anything.
  void end_future(std::unique_lock<std::mutex>& lock) {
    const auto future = future_;
    const auto error = error_;
    lock.unlock();
    if (error)
      future->setError(error);
    else
      future->markCompleted(::c10::IValue(call_.outputs));
  }

  CallUnderWay call_;                 // its outputs are constant, the rest is under the lock
  std::vector<::tutti::Work> works_;  // constant
  const std::chrono::milliseconds timeout_;
  mutable std::mutex mutex_;  // guards all below
  bool is_over_ = false;
  std::exception_ptr error_;
  ::c10::intrusive_ptr<::c10::ivalue::Future> future_;
};

GroupWork::GroupWork(int rank, ::c10d::OpType type, CallUnderWay call,
                     std::chrono::milliseconds timeout)
    : ::c10d::Work(rank, type), state_(std::make_shared<State>(std::move(call), timeout)) {
  State::begin(state_);
}

bool GroupWork::isCompleted() { return state_->complete_if_over(); }

bool GroupWork::isSuccess() const { return state_->is_over() && state_->error() == nullptr; }

std::exception_ptr GroupWork::exception() const { return state_->error(); }

std::vector<::at::Tensor> GroupWork::result() { return state_->outputs(); }

bool GroupWork::wait(std::chrono::milliseconds timeout) {
  state_->wait(timeout);
  return true;
}

::c10::intrusive_ptr<::c10::ivalue::Future> GroupWork::getFuture() { return state_->future(); }

}  // namespace tutti::torch
