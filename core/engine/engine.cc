#include "tutti/core/engine/engine.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <set>

namespace tutti {

namespace {

// The engine whose callback this thread is running, so that waiting inside one can be refused.
// Found without a call, which every blocking collective would make.
[[gnu::tls_model("initial-exec")]] thread_local const Engine* callback_of = nullptr;

// Spinning pays only if every rank of this machine has a core of its own.
int spin_rounds(const Context& context) {
  const auto& here = context.places[static_cast<size_t>(context.rank)].machine;
  std::set<int> cores;
  size_t ranks = 0;
  for (const auto& place : context.places) {
    if (place.machine != here) continue;
    ++ranks;
    cores.insert(place.cores.begin(), place.cores.end());
  }
  constexpr int kRounds = 2000;
  return ranks <= cores.size() && context.size > 1 ? kRounds : 0;
}

std::string pending_key(const Entry& entry) { return entry_key(entry.request); }

}  // namespace

Engine::Engine(Options options, Context context, std::unique_ptr<Backend> backend,
               std::shared_ptr<Store> deaths)
    : options_(std::move(options)),
      context_(std::move(context)),
      spin_rounds_(spin_rounds(context_)),
      backend_(std::move(backend)),
      transport_(*backend_->transport()),
      deaths_(std::move(deaths)),
      timeline_(context_.rank),
      liveness_(context_.rank, context_.size, options_.peer_timeout),
      stall_clock_(options_.stall_warning),
      statuses_(static_cast<size_t>(context_.size)),
      gone_(static_cast<size_t>(context_.size), false),
      timelines_(static_cast<size_t>(context_.size)),
      timeline_done_(static_cast<size_t>(context_.size), false),
      timelines_missing_(context_.size - 1),
      entries_(static_cast<size_t>(std::max<int64_t>(options_.cache_capacity, 1024))) {
  const auto send_hook = [this](int rank, std::span<const std::byte> message) {
    send(rank, message);
  };
  if (context_.rank == 0)
    coordinator_ = std::make_unique<Coordinator>(options_, context_.size, send_hook);
  Scheduler::Hooks hooks;
  hooks.send = send_hook;
  hooks.finish = [this](std::span<Entry* const> entries, const Error* error) {
    finish(entries, error);
  };
  hooks.broken = [this](const std::string& what) {
    fault(left_ ? *left_
                : Error(ErrorCode::internal,
                        fmt::format("rank {}: {} although no rank was lost; make a new "
                                    "Communicator, and please report it",
                                    context_.rank, what)),
          true);
  };
  hooks.log = [this](const std::string& line) { log(LogLevel::info, line); };
  scheduler_ = std::make_unique<Scheduler>(options_, *backend_, context_.rank, context_.size,
                                           counting_, timeline_, std::move(hooks));
  poller_.watch(backend_->descriptor(), EPOLLIN);
  poller_.watch(bell_.descriptor(), EPOLLIN);
  if (!options_.timeline.empty()) timeline_.start();
}

Engine::~Engine() { close(); }

void Engine::start() {
  thread_ = std::thread([this] { background(); });
}

// --- submission: any thread ---------------------------------------------------------------------

// What ended the whole communicator is told by whatever is waited for next, once.
void Engine::report(const std::string& line) {
  if (!broken()) log(LogLevel::warning, line);
}

bool Engine::in_callback() const { return callback_of == this; }

// Before any lock is taken: a fork may have inherited it locked.
void Engine::refuse_in_fork(std::string_view name) const {
  throw Error(ErrorCode::closed,
              fmt::format("\"{}\": this process is a fork of rank {}; a Communicator belongs to "
                          "the process that made it. Make a new one here",
                          name, context_.rank))
      .with_tensor(name);
}

void Engine::check_usable(std::string_view name) const {
  if (usable_) return;
  if (broken_) throw Error(*broken_);
  throw Error(ErrorCode::closed, fmt::format("\"{}\": this Communicator is closed", name));
}

Engine::Submission::Submission(Engine& engine, std::string_view name)
    : engine_((engine.check_not_forked(name), engine)),
      lock_(engine.submit_mutex_),
      before_(engine.submitted_.size()) {
  // Under the lock, so that nothing enters after the end has swept what was pending.
  engine.check_usable(name);
}

Engine::Submission::~Submission() {
  if (committed_) return;
  auto& submitted = engine_.submitted_;
  for (size_t i = before_; i < submitted.size(); ++i) submitted[i]->pending = false;
  submitted.resize(before_);
}

Entry& Engine::Submission::claim(std::string_view key) { return hold(engine_.entries_.at(key)); }

Entry& Engine::Submission::claim(Entry& entry) {
  engine_.entries_.again(entry);
  return hold(entry);
}

Entry& Engine::Submission::hold(Entry& entry) {
  if (entry.pending)
    throw Error(ErrorCode::duplicate_name,
                fmt::format("\"{0}\" is pending already on rank {1}: it was submitted twice before "
                            "its Work was done. Wait for the first, or use another name",
                            entry.request.name, engine_.context_.rank))
        .with_rank(engine_.context_.rank)
        .with_tensor(entry.request.name);
  entry.pending = true;
  engine_.submitted_.push_back(&entry);
  return entry;
}

void Engine::Submission::commit(bool ring) {
  committed_ = true;
  const auto now = Clock::now();
  auto& submitted = engine_.submitted_;
  for (size_t i = before_; i < submitted.size(); ++i) {
    auto& entry = *submitted[i];
    entry.submitted = now;
    if (entry.ready) engine_.find_waits(entry);
    engine_.submitted_bytes_ += entry.input.bytes();
    if (entry.plan_id != engine_.quiet_plan_ || !entry.fits_plan) engine_.quiet_bytes_ = 0;
  }
  if (ring && engine_.submitted_bytes_ >= engine_.quiet_bytes_ &&
      !engine_.bell_rung_.exchange(true))
    engine_.bell_.ring();
}

void Engine::submit(std::vector<std::unique_ptr<Entry>> entries, bool ring) {
  Submission submission(*this, entries.front()->request.name);
  for (auto& entry : entries) {
    auto& slot = submission.claim(pending_key(*entry));
    slot = std::move(*entry);
    slot.pending = true;
  }
  submission.commit(ring);
}

// --- tensors behind a stream that waits ---------------------------------------------------------

// A tensor that its stream makes after it has waited for another's Work must not be in one bucket
// with that one, nor in one before it: the bucket would wait for itself, on the device, where
// nobody sees it. So it is handed on when that Work is done; before, its own contents cannot be
// there.

namespace {

bool is_over(const std::weak_ptr<WorkState>& work) {
  const auto state = work.lock();
  return !state || state->done();
}

}  // namespace

void Engine::stream_waits(const std::shared_ptr<WorkState>& work, StreamRef stream) {
  const std::lock_guard lock(submit_mutex_);
  std::erase_if(stream_waits_, [](const StreamWait& wait) { return is_over(wait.work); });
  if (work->done()) return;
  stream_waits_.push_back({stream, work});
  // A plan that has both in one bucket is stuck, and this is the evidence.
  if (work->waiters.fetch_add(1) == 0)
    work->waiting_since.store(Clock::now().time_since_epoch().count());
}

void Engine::find_waits(Entry& entry) {
  for (const auto& wait : stream_waits_)
    if (wait.stream == entry.input.stream() && !is_over(wait.work))
      entry.behind.push_back(wait.work);
}

bool Engine::hand_over_deferred() {
  const auto count = std::erase_if(deferred_, [this](Entry* entry) {
    std::erase_if(entry->behind, is_over);
    if (!entry->behind.empty()) return false;
    scheduler_->submit(entry);
    return true;
  });
  if (count > 0) scheduler_->flush();
  return count > 0;
}

void Engine::fail_all(const Error& error) {
  scheduler_->fail(error);
  finish(std::exchange(deferred_, {}), &error);
}

void Engine::submit_join(std::unique_ptr<Entry> entry) {
  check_not_forked(entry->request.name);
  const std::lock_guard lock(submit_mutex_);
  check_usable(entry->request.name);
  auto& slot = entries_.at(entry->request.name);
  if (slot.pending)
    throw Error(ErrorCode::duplicate_name,
                fmt::format("rank {} has joined already; wait for that Work first", context_.rank))
        .with_rank(context_.rank);
  slot = std::move(*entry);
  slot.pending = true;
  slot.submitted = Clock::now();
  joins_.push_back(&slot);
  if (!bell_rung_.exchange(true)) bell_.ring();
}

void Engine::wake() {
  if (!bell_rung_.exchange(true)) bell_.ring();
}

void Engine::post(std::function<void()> function) {
  {
    const std::lock_guard lock(submit_mutex_);
    if (!closed_) {
      posted_functions_.push_back(std::move(function));
      if (!bell_rung_.exchange(true)) bell_.ring();
      return;
    }
  }
  function();
}

bool Engine::take_submissions() {
  std::vector<Entry*> joins;
  std::vector<std::function<void()>> functions;
  auto& submitted = taken_;
  submitted.clear();
  if (bell_rung_.exchange(false)) bell_.silence();
  {
    const std::lock_guard lock(submit_mutex_);
    submitted.swap(submitted_);
    submitted_bytes_ = quiet_bytes_ = 0;
    joins.swap(joins_);
    functions.swap(posted_functions_);
  }
  for (auto& function : functions)
    callbacks_.emplace_back([call = std::move(function)](std::exception_ptr) { call(); }, nullptr);
  for (Entry* entry : submitted) {
    if (left_)
      finish(entry, &*left_);
    else if (!entry->behind.empty())
      deferred_.push_back(entry);
    else
      scheduler_->submit(entry);
  }
  if (left_) finish(std::exchange(deferred_, {}), &*left_);
  scheduler_->flush();
  for (Entry* entry : joins) {
    if (left_)
      finish(entry, &*left_);
    else
      scheduler_->join(entry);
  }
  return !submitted.empty() || !joins.empty() || !functions.empty();
}

// --- one step -----------------------------------------------------------------------------------

bool Engine::step() {
  posted_ = false;
  if (closing_ && !left_) left_ = Error(ErrorCode::closed, "this Communicator was closed");
  // Taken first: whoever began to wait before it has its submissions taken by now.
  const auto now = Clock::now();
  bool moved = take_submissions();
  moved |= backend_->progress();
  moved |= handle_messages();
  handle_peer_events();
  moved |= scheduler_->advance(now);
  if (!deferred_.empty()) moved |= hand_over_deferred();
  watch_peers(now);
  if (posted_) {
    moved |= handle_messages();
    backend_->progress();
    moved = true;
  }
  if (some_finished_) {
    some_finished_ = false;
    publish_statistics();
    const std::lock_guard lock(token_mutex_);
    if (token_.waiting_drivers() > 0) drivers_.notify_all();
  }
  return moved;
}

bool Engine::pending() const {
  return !blocking_.empty() || !scheduler_->idle() || !deferred_.empty() ||
         (coordinator_ && !coordinator_->idle());
}

Clock::time_point Engine::next_deadline() const {
  return std::min(scheduler_->next_deadline(), control_deadline_);
}

// The background thread is about to sleep: what it need not wake for.
bool Engine::may_be_quiet() {
  const std::lock_guard lock(submit_mutex_);
  if (!submitted_.empty()) return false;
  quiet_bytes_ = scheduler_->bytes_awaited();
  quiet_plan_ = scheduler_->plan_id();
  return true;
}

void Engine::finish(std::span<Entry* const> entries, const Error* error) {
  counting_.operations += entries.size();
  some_finished_ = true;
  finishing_.clear();
  {
    // A name may be submitted again before anyone sees that its Work is done.
    const std::lock_guard lock(submit_mutex_);
    for (Entry* entry : entries) {
      if (entry->reuses_work && error == nullptr && !closed_)
        finishing_.push_back(entry->work);
      else
        finishing_.push_back(std::move(entry->work));
      if (entry->made) entry->made = Tensor();
      entry->staged = nullptr;
      entry->ready.reset();
      entry->pending = false;
    }
  }
  for (auto& work : finishing_) {
    if (!work->finish_part(error, finished_callbacks_) || finished_callbacks_.empty()) continue;
    const auto exception = work->exception();
    for (auto& callback : finished_callbacks_)
      callbacks_.emplace_back(std::move(callback), exception);
    finished_callbacks_.clear();
  }
  finishing_.clear();
}

// Callbacks run without the token, so that they may submit and so that others can drive meanwhile.
void Engine::run_callbacks() {
  if (callbacks_.empty()) return;
  auto callbacks = std::exchange(callbacks_, {});
  put_token_back();
  const auto* outer = std::exchange(callback_of, this);
  for (auto& [callback, exception] : callbacks) {
    try {
      callback(exception);
    } catch (const std::exception& error) {
      log(LogLevel::error,
          fmt::format("rank {}: a callback threw: {}; it was given up, all else goes "
                      "on",
                      context_.rank, error.what()));
    } catch (...) {
      log(LogLevel::error, fmt::format("rank {}: a callback threw something that is no "
                                       "std::exception; it was given up, all else goes on",
                                       context_.rank));
    }
  }
  callback_of = outer;
  std::unique_lock lock(token_mutex_);
  // A callback may have ended a Work that a sleeping driver waits for.
  if (token_.waiting_drivers() > 0) drivers_.notify_all();
  while (!token_.take_or_sleep()) {
    drivers_.wait(lock);
    token_.driver_wakes();
  }
  if (!deferred_.empty()) wake();  // a callback may have ended what they wait for
}

void Engine::publish_statistics() {
  const auto counters = backend_->counters();
  uint64_t submitting = 0;
  {
    const std::lock_guard lock(submit_mutex_);
    submitting = submission_allocations_ + entries_.allocations();
  }
  const std::lock_guard lock(statistics_mutex_);
  const auto waits = published_.wait_seconds;
  published_ = counting_;
  published_.wakeups = wakeups_;
  published_.wait_seconds = waits;
  published_.data_messages = counters.messages_sent;
  published_.data_bytes = counters.bytes_sent;
  published_.control_messages = counters.control_messages_sent;
  published_.control_bytes = counters.control_bytes_sent;
  published_.negotiation_messages = negotiation_messages_;
  published_.allocations = counters.allocations + scheduler_->allocations() + submitting;
  published_.bytes_to_peer = counters.bytes_to_peer;
}

Statistics Engine::statistics() {
  {
    // Where nobody drives, the numbers are brought up to date.
    const std::lock_guard lock(token_mutex_);
    if (token_.take()) {
      publish_statistics();
      static_cast<void>(token_.put_back());
    }
  }
  const std::lock_guard lock(statistics_mutex_);
  auto statistics = published_;
  statistics.wakeups = wakeups_;
  return statistics;
}

std::optional<Error> Engine::broken() const {
  const std::lock_guard lock(submit_mutex_);
  return broken_;
}

void Engine::log(LogLevel level, const std::string& line) {
  if (level > options_.log_level) return;
  const std::lock_guard lock(log_mutex_);
  if (options_.log)
    options_.log(level, line);
  else
    log_to_stderr(level, line);
}

void Engine::close() noexcept {
  try {
    {
      const std::lock_guard lock(submit_mutex_);
      if (closed_) return;
      closed_ = true;
      usable_ = false;
    }
    if (forked()) {
      // The thread exists in the parent only; its handle must not be joined here.
      if (thread_.joinable()) thread_.detach();
      return;
    }
    closing_ = true;
    bell_.ring();
    {
      const std::lock_guard lock(token_mutex_);
      background_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
    {
      std::unique_lock lock(token_mutex_);
      const auto deadline = Deadline::after(options_.close_timeout);
      while (!token_.take() && !deadline.passed()) {
        if (token_.take_or_sleep()) break;
        drivers_.wait_for(lock, std::chrono::milliseconds(10));
        token_.driver_wakes();
      }
    }
    const bool healthy = !broken();
    const Error closed(
        ErrorCode::closed,
        fmt::format("rank {} closed this Communicator while the operation was pending",
                    context_.rank));
    take_submissions();
    fail_all(closed);
    {
      const std::lock_guard lock(submit_mutex_);
      entries_.drop_works();
    }
    if (!options_.timeline.empty()) collect_timelines(healthy ? options_.close_timeout : 0);
    if (healthy) transport_.goodbye(options_.close_timeout);
    run_callbacks();
    std::unique_lock lock(token_mutex_);
    static_cast<void>(token_.put_back());
    drivers_.notify_all();
  } catch (const std::exception& error) {
    log(LogLevel::error, fmt::format("rank {}: closing: {}", context_.rank, error.what()));
  }
}

}  // namespace tutti
