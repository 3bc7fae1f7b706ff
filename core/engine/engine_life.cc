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

// Ranks that are threads of this process.
int ranks_here(const Context& context) {
  const auto& own = context.places[static_cast<size_t>(context.rank)];
  return static_cast<int>(
      std::count_if(context.places.begin(), context.places.end(), [&](const Place& place) {
        return place.pid == own.pid && place.host == own.host && place.shares_pids(own);
      }));
}

// What is said of a late rank, in a report or an error, must be known by then.
double probe_interval(const Options& options) {
  double seconds = options.stall_warning / 2;
  if (options.operation_timeout > 0) seconds = std::min(seconds, options.operation_timeout / 2);
  return std::max(seconds, 0.01);
}

}  // namespace

Engine::Engine(Options options, Context context, std::unique_ptr<Backend> backend,
               std::unique_ptr<DeathReader> deaths)
    : options_(std::move(options)),
      context_(std::move(context)),
      spin_rounds_(spin_rounds(context_)),
      ranks_here_(ranks_here(context_)),
      backend_(std::move(backend)),
      transport_(*backend_->transport()),
      deaths_(std::move(deaths)),
      shared_timeline_(std::make_shared<Timeline>(context_.rank)),
      liveness_(context_.rank, context_.size, options_.peer_timeout, probe_interval(options_)),
      stall_clock_(options_.stall_warning),
      statuses_(static_cast<size_t>(context_.size)),
      said_farewell_(static_cast<size_t>(context_.size), false),
      gone_(static_cast<size_t>(context_.size), false),
      timelines_(static_cast<size_t>(context_.size)),
      timeline_done_(static_cast<size_t>(context_.size), false),
      timelines_missing_(context_.size - 1),
      callbacks_([this](const std::string& line) {
        log(LogLevel::error, fmt::format("rank {}: {}", context_.rank, line));
      }),
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
  hooks.on_its_way = [this] {
    publish_statistics();
    some_wake_ = true;
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
  callbacks_.end();
  if (callback_thread_.joinable()) callback_thread_.join();
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
}

std::optional<Error> Engine::broken() const {
  if (!is_broken_) return {};
  const std::lock_guard lock(submit_mutex_);
  return broken_;
}

// An error that ended the whole communicator is thrown by the next call of the program; it is not
// logged for each Work as well. Where the program closed it with Works pending, as an exception on
// its way to main() does, the first stands for all. This takes no lock but that of the log: the
// last handle of a Work may be given up by a thread that holds submit_mutex_.
void Engine::report(const std::string& line) {
  if (is_broken_) return;
  if (usable_) return log(LogLevel::warning, line);
  if (!told_of_pending_.exchange(true))
    log(LogLevel::warning, line + "; others that nobody waited for are not listed");
}

// Every pending entry is in the table, whichever list of the engine or of its scheduler has it; so
// none is forgotten, not even one that was between two lists when something was thrown.
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

// Of the exception that is being handled.
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
    // The step that threw left its end undone; the background thread makes another one.
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
  {
    const std::lock_guard lock(token_mutex_);
    drivers_.notify_all();
  }
  if (!healthy) return;
  // Before the peers hear of it, and may end because of it.
  tell_launcher_of_error();
  say_farewell(last);
}

// False: it does not end in time, because it runs an update or an observer.
bool Engine::background_ends(Deadline deadline) {
  if (!thread_.joinable()) return true;
  {
    std::unique_lock lock(token_mutex_);
    background_.notify_all();
    while (!background_is_over_) {
      if (deadline.passed()) return false;
      background_.wait_until(lock, deadline.when());
    }
  }
  thread_.join();
  return true;
}

// The thread that has the token ends its step, sees that all is over and leaves. False: it did not
// in time.
bool Engine::take_token_to_close(Deadline deadline) {
  std::unique_lock lock(token_mutex_);
  while (!token_.take_or_sleep()) {
    drivers_.wait_until(lock, deadline.when());
    token_.driver_wakes();
    if (deadline.passed()) return false;
  }
  return true;
}

// What was to be run before is run; a callback that takes long is waited for, but not for ever.
void Engine::end_callbacks() {
  callbacks_.end();
  if (!callback_thread_.joinable()) return;
  if (in_callback()) {
    callback_thread_.detach();  // it ends when it has run the rest
  } else if (callbacks_.wait_for_end(Deadline::after(options_.close_timeout))) {
    callback_thread_.join();
  } else {
    callback_thread_.detach();
    log(LogLevel::error,
        fmt::format("rank {}: closing: a callback still ran after TUTTI_CLOSE_TIMEOUT={} s; it is "
                    "left running",
                    context_.rank, options_.close_timeout));
  }
}

void Engine::close(std::string_view error) noexcept {
  // In a fork the threads, the token and what is on its way are the parent's.
  if (forked()) return;
  try {
    {
      const std::lock_guard lock(submit_mutex_);
      if (closed_) return;
      closing_error_ = one_line(error, Farewell::kLongestError);
      closed_ = true;
      usable_ = false;
      raise_all();
    }
    closing_ = true;
    wake();
    const auto deadline = Deadline::after(options_.close_timeout);
    const bool has_ended = background_ends(deadline);
    if (!has_ended || !take_token_to_close(deadline)) {
      // The background thread holds on to the engine by itself, a thread that waits does not.
      if (has_ended)
        kept_ = weak_from_this().lock();
      else
        thread_.detach();
      log(LogLevel::error,
          fmt::format("rank {}: closing: a thread was still in an update or an observer after "
                      "TUTTI_CLOSE_TIMEOUT={} s; it is left there, and no rank was told goodbye",
                      context_.rank, options_.close_timeout));
      end_callbacks();
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
    });
    put_token_back();
    end_callbacks();
  } catch (const std::exception& error) {
    log(LogLevel::error, fmt::format("rank {}: closing: {}", context_.rank, error.what()));
  }
}

}  // namespace tutti
