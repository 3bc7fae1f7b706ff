// How the engine begins and ends: made, started, closed, refused in a fork.

#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
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
  thread_ = std::thread([this] {
    start_.wait(false);
    background();
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
}

std::optional<Error> Engine::broken() const {
  const std::lock_guard lock(submit_mutex_);
  return broken_;
}

// What ended the whole communicator is told by whatever is waited for next, once.
void Engine::report(const std::string& line) {
  if (!broken()) log(LogLevel::warning, line);
}

void Engine::fail_all(const Error& error) {
  scheduler_->fail(error);
  finish(std::exchange(deferred_, {}), &error);
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
    const auto last = farewell();
    fail_all(closed);
    if (healthy) say_farewell(last);
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
