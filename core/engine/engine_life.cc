// Makes, starts and closes the engine, and refuses its use in a fork.

#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <new>
#include <set>

#include "tutti/base/text.h"
#include "tutti/core/engine/engine.h"

namespace tutti {

namespace {

// The engine whose callbacks this thread runs; used to refuse waits inside a callback. With this
// TLS model, every blocking collective can read it without a call into the loader.
[[gnu::tls_model("initial-exec")]] thread_local const Engine* callback_of = nullptr;

// Returns the number of rounds to spin. Spinning helps only if every rank of this machine has its
// own core.
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

// Returns the number of ranks that are threads of this process, including this rank.
int ranks_here(const Context& context) {
  const auto& own = context.places[static_cast<size_t>(context.rank)];
  return static_cast<int>(
      std::count_if(context.places.begin(), context.places.end(), [&](const Place& place) {
        return place.pid == own.pid && place.host == own.host && place.shares_pids(own);
      }));
}

}  // namespace

Engine::Engine(Options options, Context context, std::unique_ptr<Backend> backend,
               std::unique_ptr<DeathReader> deaths)
    : options_(std::move(options)),
      context_(std::move(context)),
      spin_rounds_(spin_rounds(context_)),
      ranks_here_(ranks_here(context_)),
      backend_(std::move(backend)),
      timeline_(std::make_shared<Timeline>(context_.rank)),
      callbacks_([this](const std::string& line) {
        log(LogLevel::error, fmt::format("rank {}: {}", context_.rank, line));
      }),
      entries_(static_cast<size_t>(std::max<int64_t>(options_.cache_capacity, 1024))),
      deaths_(std::move(deaths)),
      voice_(options_, [this] { wake(); }) {
  node_ = std::make_unique<Node>(options_, context_,
                                 Node::Ports{*backend_, *this, *timeline_, counting_});
  deaths_->on_news([this] { wake(); });
  poller_.watch(backend_->descriptor(), EPOLLIN);
  poller_.watch(turns_.bell().descriptor(), EPOLLIN);
  if (!options_.timeline.empty()) timeline_->start();
}

Engine::~Engine() { close(); }

bool Engine::in_callback() const { return callback_of == this; }

void Engine::prepare() {
  // Both threads own a share of the engine, and either may be the last owner. The program may
  // destroy its Communicator in a callback, or while another of its threads waits.
  callback_thread_ = std::thread([self = shared_from_this()] {
    callback_of = self.get();
    self->callbacks_.run();
  });
  thread_ = std::thread([self = shared_from_this()] { self->background(); });
}

void Engine::start() {
  node_->start();
  turns_.begin();
}

void Engine::abandon() noexcept {
  {
    const auto lock = hand_over_.lock();
    hand_over_.close(lock);
  }
  node_->abandon();
  turns_.end();
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

void Engine::check_usable(const HandOver::Lock&, std::string_view name) const {
  if (hand_over_.lets_in()) return;
  if (const auto& error = ending_.error()) throw about(*error, name);
  throw Error(ErrorCode::closed, fmt::format("{}: this Communicator is closed", shown_name(name)))
      .with_tensor(name);
}

std::optional<Error> Engine::broken() const {
  if (hand_over_.door() == Door::open) return {};
  const auto lock = hand_over_.lock();
  return ending_.error();
}

// Logs the error of a Work whose result no thread has read. If an error ended the whole
// communicator, the program's next call throws it, so it is not logged for each Work. If the
// program closed the communicator while Works were pending (for example because of an exception),
// only the first of these Works is logged. This function takes only the log's lock, because a
// thread that drops the last handle of a Work may hold the lock of the hand-over.
void Engine::report(const std::string& line) {
  const auto door = hand_over_.door();
  if (door == Door::breaking || door == Door::broken) return;
  if (door == Door::open) return log(LogLevel::warning, line);
  if (!reported_pending_.exchange(true))
    log(LogLevel::warning, line + "; others that nobody waited for are not listed");
}

// --- the end: something was thrown --------------------------------------------------------------

void Engine::break_down() noexcept {
  try {
    node_->on_thrown(node_->error_of_exception());
    // The step that threw is incomplete, so the background thread must run another one.
    wake();
  } catch (...) {
    hand_over_.break_door();
  }
}

// --- the end: the Communicator is destroyed -----------------------------------------------------

// Returns false if the background thread does not end in time, because it runs the program's update
// or observer.
bool Engine::background_ends(Deadline deadline) {
  if (!thread_.joinable()) return true;
  if (!turns_.ended_by(deadline.when())) return false;
  thread_.join();
  return true;
}

// Runs the callbacks that are still queued. Waits for at most close_timeout for a running callback.
void Engine::end_callbacks() {
  callbacks_.end();
  if (!callback_thread_.joinable()) return;
  if (in_callback()) {
    callback_thread_.detach();  // it ends after the queued callbacks
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

// Runs the node until it is closed. This thread must hold the token. Each phase has a deadline.
void Engine::run_to_the_end() {
  while (node_->phase() != Phase::over) {
    if (step() || !node_->arm()) continue;
    sleep(node_->wake_at());
  }
}

// Releases everything after the node is closed. This thread must hold the token.
void Engine::let_go() {
  {
    const auto lock = hand_over_.lock();
    entries_.drop_works();
  }
  if (!options_.timeline.empty()) write_timelines();
  if (node_->may_say_goodbye()) backend_->transport()->goodbye(options_.close_timeout);
}

// On rank 0, writes the timelines of all ranks into one file. A rank that could not send its
// timeline, because the communicator broke, writes its own file.
void Engine::write_timelines() {
  const auto& gathering = node_->gathering();
  try {
    if (!gathering.has_own() && context_.size > 1)
      write_timeline(fmt::format("{}.rank{}", options_.timeline, context_.rank),
                     {timeline_->stop()});
    else if (!gathering.has_own())
      write_timeline(options_.timeline, {timeline_->stop()});
    else if (context_.rank == 0)
      write_timeline(options_.timeline, gathering.timelines());
  } catch (const Error& error) {
    log(LogLevel::warning, fmt::format("rank {}: {}", context_.rank, error.what()));
  }
}

void Engine::close(std::string_view error) noexcept {
  // In a fork the threads, the token and the pending operations belong to the parent process.
  if (forked()) return;
  try {
    {
      const auto lock = hand_over_.lock();
      auto why = one_line(error, Farewell::kLongestError);
      if (!hand_over_.close(lock)) return;
      hand_over_.offered(lock).closing = std::move(why);
      ending_.raise_all();
    }
    turns_.end();
    const auto deadline = Deadline::after(options_.close_timeout);
    const bool has_ended = background_ends(deadline);
    if (!has_ended || !turns_.take_by(deadline.when())) {
      // The background thread owns a share of the engine. A waiting thread does not, so the engine
      // keeps itself alive for that thread.
      if (has_ended)
        self_ = weak_from_this().lock();
      else
        thread_.detach();
      log(LogLevel::error,
          fmt::format("rank {}: closing: a thread was still in an update or an observer after "
                      "TUTTI_CLOSE_TIMEOUT={} s; it is left running, and this rank closes without "
                      "a farewell to the others",
                      context_.rank, options_.close_timeout));
      end_callbacks();
      return;
    }
    // If a step throws, the communicator is broken. The second call then runs it until it is
    // closed.
    if (!guarded([&] { run_to_the_end(); })) guarded([&] { run_to_the_end(); });
    guarded([&] { let_go(); });
    turns_.give();
    end_callbacks();
  } catch (const std::exception& error) {
    log(LogLevel::error, fmt::format("rank {}: closing: {}", context_.rank, error.what()));
  }
}

}  // namespace tutti
