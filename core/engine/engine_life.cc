// How the engine begins and ends: made, started, closed, refused in a fork.

#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <new>
#include <set>

#include "tutti/base/text.h"
#include "tutti/core/engine/engine.h"

namespace tutti {

namespace {

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

// What is said of a late rank, in a report or an error, must be known by then.
double probe_interval(const Options& options) {
  double seconds = options.stall_warning / 2;
  if (options.operation_timeout > 0) seconds = std::min(seconds, options.operation_timeout / 2);
  return std::max(seconds, 0.01);
}

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
      liveness_(context_.rank, context_.size, options_.peer_timeout, probe_interval(options_)),
      stall_clock_(options_.stall_warning),
      statuses_(static_cast<size_t>(context_.size)),
      said_farewell_(static_cast<size_t>(context_.size), false),
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

void Engine::prepare() {
  // It may be the last to leave: a callback that it runs may destroy the Communicator.
  thread_ = std::thread([self = shared_from_this()] {
    self->start_.wait(false);
    self->background();
  });
}

void Engine::start() {
  start_ = true;
  start_.notify_all();
}

void Engine::abandon() noexcept {
  {
    const std::lock_guard lock(submit_mutex_);
    closed_ = true;
    usable_ = false;
  }
  closing_ = true;
  start();
  if (thread_.joinable()) thread_.join();
}

void Engine::refuse_in_fork(std::string_view name) const {
  throw Error(ErrorCode::closed,
              fmt::format("{}: this process is a fork of rank {}; a Communicator belongs to "
                          "the process that made it. Make a new one here",
                          shown_name(name), context_.rank))
      .with_tensor(name.substr(0, kLongestName));
}

void Engine::check_usable(std::string_view name) const {
  if (usable_) return;
  if (broken_) throw about(*broken_, name);
  throw Error(ErrorCode::closed, fmt::format("{}: this Communicator is closed", shown_name(name)))
      .with_tensor(name);
  if (!is_broken_) return {};
}

std::optional<Error> Engine::broken() const {
  const std::lock_guard lock(submit_mutex_);
  return broken_;
}

// What ended the whole communicator is told by whatever is waited for next, once.
void Engine::report(const std::string& line) {
  if (!is_broken_) log(LogLevel::warning, line);
}

// All that is pending is in the table, wherever it was on its way; so nothing is forgotten, not
// even what was on its way between two places when something was thrown.
void Engine::fail_all(const Error& error) {
  scheduler_->drop();
  deferred_.clear();
  std::vector<Entry*> pending;
  {
    const std::lock_guard lock(submit_mutex_);
    submitted_.clear();
    joins_.clear();
    pending = entries_.pending();
  }
  finish(pending, &error);
}

// --- the end: something was thrown --------------------------------------------------------------

// Of what is being handled.
Error Engine::as_error() const {
  const auto because = [&](ErrorCode code, std::string_view text) {
    return Error(code, fmt::format("rank {} cannot go on{}: {}; make a new Communicator",
                                   context_.rank, in_flight(), text));
  };
  try {
    throw;
  } catch (const Error& error) {
    return because(error.code(), error.what()).with_rank(error.rank()).with_tensor(error.tensor());
  } catch (const std::bad_alloc&) {
    return because(ErrorCode::out_of_memory, "it ran out of memory");
  } catch (const std::exception& error) {
    return because(ErrorCode::internal, error.what());
  } catch (...) {
    return because(ErrorCode::internal, "something was thrown that is no std::exception");
  }
}

void Engine::break_down() noexcept {
  try {
    fault(as_error(), true);
  } catch (...) {
    // The peers see this rank's end instead of reading of it.
  }
  try {
    if (!is_dead_) end(broken().value_or(Error(ErrorCode::internal, "a rank cannot go on")));
    // Callbacks of what ended are left to whoever has the token next.
    wake();
  } catch (...) {
    usable_ = false;
  }
}

// --- the end: the Communicator is destroyed -----------------------------------------------------

void Engine::shut() {
  is_shut_ = true;
  take_submissions();
  const auto last = farewell();
  const bool healthy = !is_dead_;
  if (healthy)
    left_ = Error(ErrorCode::closed,
                  fmt::format("rank {} closed this Communicator while the operation was pending",
                              context_.rank));
  fail_all(*left_);
  if (healthy) say_farewell(last);
  const std::lock_guard lock(token_mutex_);
  drivers_.notify_all();
}

// The thread that has it ends its step, sees that all is over and leaves. False: it did not.
bool Engine::take_token_to_close() {
  std::unique_lock lock(token_mutex_);
  const auto deadline = Deadline::after(options_.close_timeout);
  while (!token_.take_or_sleep()) {
    drivers_.wait_until(lock, deadline.when());
    token_.driver_wakes();
    if (deadline.passed()) return false;
  }
  return true;
}

void Engine::close() noexcept {
  // The thread, the token and what is on its way are the parent's.
  if (forked()) return;
  try {
    {
      const std::lock_guard lock(submit_mutex_);
      if (closed_) return;
      closed_ = true;
      usable_ = false;
    }
    closing_ = true;
    bell_.ring();
    {
      const std::lock_guard lock(token_mutex_);
      background_.notify_all();
    }
    // A callback that the background thread runs cannot wait for that thread's end.
    if (thread_.get_id() == std::this_thread::get_id())
      thread_.detach();
    else if (thread_.joinable())
      thread_.join();
    if (!take_token_to_close()) {
      kept_ = weak_from_this().lock();
      log(LogLevel::error,
          fmt::format("rank {}: closing: a thread was still in an update or an observer after "
                      "TUTTI_CLOSE_TIMEOUT={} s; it is left there, and nobody was told goodbye",
                      context_.rank, options_.close_timeout));
      return;
    }
    guarded([&] {
      if (!is_shut_) shut();
      {
        const std::lock_guard lock(submit_mutex_);
        entries_.drop_works();
      }
      const bool healthy = !is_dead_;
      if (!options_.timeline.empty()) collect_timelines(healthy ? options_.close_timeout : 0);
      if (healthy) transport_.goodbye(options_.close_timeout);
      run_callbacks();
    });
    put_token_back();
  } catch (const std::exception& error) {
    log(LogLevel::error, fmt::format("rank {}: closing: {}", context_.rank, error.what()));
  }
}

}  // namespace tutti
