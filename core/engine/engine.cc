// One step of the engine, and what follows from it: entries that are over, statistics.

#include "tutti/core/engine/engine.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <utility>

namespace tutti {

namespace {

// The engine whose callbacks this thread runs, so that waiting inside one can be refused. Found
// without a call, which every blocking collective would make.
[[gnu::tls_model("initial-exec")]] thread_local const Engine* callback_of = nullptr;

Error freed_in_use(const std::string& name, int rank) {
  return Error(ErrorCode::invalid_argument,
               fmt::format("\"{}\": rank {} freed the SharedRegion in which its tensor lies before "
                           "the Work was done; wait for the Work first. The other ranks got what "
                           "was there",
                           name, rank))
      .with_rank(rank)
      .with_tensor(name);
}

}  // namespace

bool Engine::in_callback() const { return callback_of == this; }

void Engine::prepare() {
  // Either may be the last that holds the engine: the program destroys its Communicator in a
  // callback, or while it has another thread that waits.
  callback_thread_ = std::thread([self = shared_from_this()] {
    callback_of = self.get();
    self->callbacks_.run();
  });
  thread_ = std::thread([self = shared_from_this()] {
    self->start_.wait(false);
    self->background();
  });
}

bool Engine::take_submissions() {
  std::vector<Entry*> joins;
  auto& submitted = taken_;
  submitted.clear();
  bell_.silence();
  {
    const std::lock_guard lock(submit_mutex_);
    submitted.swap(submitted_);
    submitted_bytes_ = quiet_bytes_ = 0;
    joins.swap(joins_);
    some_may_be_free_ |= !retired_.empty();
    for (auto& region : retired_) retiring_.push_back(std::move(region));
    retired_.clear();
  }
  for (Entry* entry : submitted) {
    if (const auto* why = why_never(*entry))
      finish(entry, why);
    else if (!entry->behind.empty())
      deferred_.push_back(entry);
    else
      scheduler_->submit(entry);
  }
  scheduler_->flush();
  for (Entry* entry : joins) {
    if (left_)
      finish(entry, &*left_);
    else
      scheduler_->join(entry);
  }
  return !submitted.empty() || !joins.empty();
}

// --- one step -----------------------------------------------------------------------------------

bool Engine::step() {
  // What blocking calls have counted: this thread may hold the token long, and statistics() waits.
  if (published_ends_ != blocking_ends_.load(std::memory_order_relaxed)) publish_statistics();
  posted_ = false;
  const bool was_dead = is_dead_;
  if (closing_ && !is_shut_) shut();
  // The time is read first: what a thread submitted before it began to wait is taken by then.
  const auto now = Clock::now();
  bool moved = take_submissions();
  if (!is_dead_) {
    moved |= backend_->progress();
    moved |= handle_messages();
  }
  if (!is_dead_) handle_peer_events();
  // After its farewell this rank takes part in nothing.
  if (!is_dead_ && !is_shut_) moved |= scheduler_->advance(now);
  if (!deferred_.empty()) moved |= hand_over_deferred();
  if (!is_dead_) watch_peers(now);
  if (posted_ && !is_dead_) {
    moved |= handle_messages();
    if (!is_dead_) backend_->progress();
    moved = true;
  }
  moved |= is_dead_ != was_dead;
  if (some_may_be_free_) free_retired();
  if (some_wake_) {
    some_wake_ = false;
    const std::lock_guard lock(token_mutex_);
    if (token_.waiting_drivers() > 0) drivers_.notify_all();
  }
  return moved;
}

bool Engine::pending() const {
  return watches_ > 0 || !blocking_.empty() || !scheduler_->idle() || !deferred_.empty() ||
         (coordinator_ && !coordinator_->idle());
}

Clock::time_point Engine::next_deadline() const {
  if (is_dead_) return Clock::time_point::max();
  return std::min(scheduler_->next_deadline(), control_deadline_);
}

// The background thread is about to sleep: which submissions need not wake it. False: there are
// some already.
bool Engine::may_be_quiet() {
  const std::lock_guard lock(submit_mutex_);
  if (!submitted_.empty()) return false;
  quiet_bytes_ = scheduler_->bytes_awaited();
  quiet_plan_ = scheduler_->plan_id();
  return true;
}

void Engine::finish(std::span<Entry* const> entries, const Error* error) {
  counting_.operations += entries.size();
  // Before any thread sees that a Work is done: it finds that Work counted.
  publish_statistics();
  some_wake_ = true;
  // Once a Work is out of its entry only this function can end it, so nothing after that may throw.
  finishing_.clear();
  finishing_.reserve(entries.size());
  std::vector<std::pair<size_t, Error>> failed;
  some_may_be_free_ |= !retiring_.empty();
  for (size_t i = 0; i < entries.size(); ++i) {
    const auto& entry = *entries[i];
    if (error != nullptr)
      failed.emplace_back(i, about(*error, entry.request.name));
    else if (!retiring_.empty() && is_in_retired_memory(entry))
      failed.emplace_back(i, freed_in_use(entry.request.name, context_.rank));
  }
  auto next_failed = failed.begin();
  {
    // From here on any thread may submit these names again, before it sees that the Work is done.
    const std::lock_guard lock(submit_mutex_);
    for (Entry* entry : entries) {
      const bool is_good = next_failed == failed.end() || next_failed->first != finishing_.size();
      if (!is_good) ++next_failed;
      if (entry->reuses_work && is_good && !closed_)
        finishing_.push_back(entry->work);
      else
        finishing_.push_back(std::move(entry->work));
      if (entry->made) entry->made = Tensor();
      entry->staged = nullptr;
      entry->ready.reset();
      entry->pending = false;
    }
  }
  next_failed = failed.begin();
  for (size_t i = 0; i < finishing_.size(); ++i) {
    std::optional<Error> why;
    if (next_failed != failed.end() && next_failed->first == i)
      why.emplace(std::move((next_failed++)->second));
    end_part(*finishing_[i], std::move(why));
  }
  finishing_.clear();
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
  published_.operations += blocking_calls_done() + pairs_run_;
  published_.tensors += blocking_calls_done() + pairs_run_;
  published_.wakeups = wakeups_;
  published_.wait_seconds = waits;
  published_.data_messages = counters.messages_sent;
  published_.data_bytes = counters.bytes_sent;
  published_.control_messages = counters.control_messages_sent;
  published_.control_bytes = counters.control_bytes_sent;
  published_.negotiation_messages = negotiation_messages_;
  published_.allocations = counters.allocations + scheduler_->allocations() + submitting;
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
