// One step of the engine, and its statistics and log.

#include "tutti/core/engine/engine.h"

#include <fmt/format.h>
#include <sched.h>

#include <utility>

namespace tutti {

// --- one step -----------------------------------------------------------------------------------

void Engine::fill_batch() {
  bell_.silence();
  // After a throw these entries are left here; they have ended by now.
  batch_.operations.clear();
  batch_.joins.clear();
  batch_.is_watched = watches_ > 0;
  batch_.is_told = voice_.has_told();
  if (asks_deaths_) batch_.deaths = deaths_->news();
  const std::lock_guard lock(submit_mutex_);
  batch_.operations.swap(submitted_);
  batch_.joins.swap(joins_);
  submitted_bytes_ = quiet_bytes_ = 0;
  for (auto& region : retired_) retiring_.add(std::move(region));
  retired_.clear();
  if (closed_ && !batch_.closes) {
    batch_.closes = true;
    batch_.error = closing_error_;
  }
}

bool Engine::step() {
  // What blocking calls have counted: this thread may hold the token long, and statistics() waits.
  if (published_ends_ != blocking_ends_.load(std::memory_order_relaxed)) publish_statistics();
  // The time is read first: what a thread submitted before it began to wait is taken by then.
  const auto now = Clock::now();
  fill_batch();
  const bool moved = node_->step(batch_, now);
  if (retiring_.may_have_unused()) free_retired();
  if (some_wake_) {
    some_wake_ = false;
    const std::lock_guard lock(token_mutex_);
    if (token_.waiting_drivers() > 0) drivers_.notify_all();
  }
  return moved;
}

void Engine::free_retired() {
  if (node_->blocking().is_waiting()) return;   // a blocking call may use any memory
  std::vector<std::unique_ptr<Region>> unused;  // given back without the lock
  const std::lock_guard lock(submit_mutex_);
  unused = retiring_.take_unused(entries_.pending());
}

// The background thread is about to sleep: which submissions need not wake it. False: there are
// some already.
bool Engine::may_be_quiet() {
  const std::lock_guard lock(submit_mutex_);
  if (!submitted_.empty()) return false;
  quiet_bytes_ = node_->scheduler().bytes_awaited();
  quiet_plan_ = node_->scheduler().plan_id();
  return true;
}

void Engine::end_part(WorkState& work, std::optional<Error> error) noexcept {
  std::vector<WorkCallback> callbacks;
  if (!work.finish_part(std::move(error), callbacks)) return;
  for (auto& callback : callbacks) try {
      post([callback = std::move(callback), exception = work.exception()] { callback(exception); });
    } catch (const std::bad_alloc&) {
      // If there is no memory for a callback, it is destroyed without a call. The others run.
    }
}

void Engine::work_ended() {
  {
    const std::lock_guard lock(token_mutex_);
    if (token_.waiting_drivers() > 0) drivers_.notify_all();
  }
  wake();  // the holder of the token may sleep in the poller
}

void Engine::publish_statistics() {
  const auto counters = backend_->counters();
  uint64_t submitting = 0;
  {
    const std::lock_guard lock(submit_mutex_);
    submitting = submission_allocations_ + entries_.allocations();
  }
  const std::lock_guard lock(statistics_mutex_);
  published_ends_ = blocking_ends_.load(std::memory_order_relaxed);
  const auto waits = published_.wait_seconds;
  published_ = counting_;
  const auto calls = node_->blocking().over() + node_->blocking().pairs();
  published_.operations += calls;
  published_.tensors += calls;
  published_.wakeups = wakeups_;
  published_.wait_seconds = waits;
  published_.data_messages = counters.messages_sent;
  published_.data_bytes = counters.bytes_sent;
  published_.control_messages = counters.control_messages_sent;
  published_.control_bytes = counters.control_bytes_sent;
  published_.negotiation_messages = node_->negotiation_messages();
  published_.allocations = counters.allocations + node_->scheduler().allocations() + submitting;
  published_.copied_bytes = counters.copied_bytes;
  published_.bytes_to_peer = counters.bytes_to_peer;
}

Statistics Engine::statistics() {
  check_not_forked("statistics");
  const auto ended = blocking_ends_.load(std::memory_order_relaxed);
  for (const auto patience = Deadline::after(0.1);; ::sched_yield()) {
    // Where no thread drives, the numbers are brought up to date.
    if (token_.take()) {
      guarded([&] { publish_statistics(); });
      put_token_back();
    }
    // A thread that drives does so before each of its steps.
    const std::lock_guard lock(statistics_mutex_);
    if (published_ends_ < ended && !patience.passed()) continue;
    auto statistics = published_;
    statistics.wakeups = wakeups_;
    return statistics;
  }
}

void Engine::log(LogLevel level, const std::string& line) noexcept {
  if (level > options_.log_level) return;
  try {
    const std::lock_guard lock(log_mutex_);
    if (options_.log) return options_.log(level, line);
  } catch (...) {
    // A sink that fails loses its lines to standard error.
  }
  log_to_stderr(level, line);
}

}  // namespace tutti
