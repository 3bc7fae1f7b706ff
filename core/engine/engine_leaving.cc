// How ranks end: what this rank tells its peers when it closes, what it does when a peer says so,
// and what a peer's death or fault does to what is pending here.

#include <fmt/format.h>

#include <atomic>
#include <chrono>

#include "tutti/base/process/process_state.h"
#include "tutti/base/text.h"
#include "tutti/core/engine/engine.h"
#include "tutti/core/launch/meeting.h"

namespace tutti {

namespace {

// Of this process: false once another rank's end has failed an operation here, because what fails
// later, in another communicator too, may come of that one; and once it has told.
std::atomic<bool> may_tell_launcher_of_error{true};

}  // namespace

// --- what is said -------------------------------------------------------------------------------

std::string Engine::in_flight() const {
  if (!blocking_.empty()) return fmt::format(" while \"{}\" was in flight", blocking_);
  const auto& runs = scheduler_->runs();
  if (!runs.empty())
    return fmt::format(" while {} was in flight", Scheduler::describe(*runs.front()));
  const auto name = scheduler_->first_pending();
  return name.empty() ? std::string() : fmt::format(" while \"{}\" waited for all ranks", name);
}

// What the program can do when one of its ranks is gone.
std::string Engine::how_to_go_on() const {
  const int left = context_.size - 1;
  return left == 1
             ? "shrink() gives the rank that is left a Communicator of its own"
             : fmt::format("shrink() gives the {} ranks that are left a new Communicator", left);
}

// An error that ended more than one operation, as the Work called `name` throws it.
Error Engine::about(const Error& error, std::string_view name) {
  name = name.substr(0, name.find('\n'));  // send and recv: the peer is behind it, see entry_key()
  if (error.code() == ErrorCode::peer_left || error.code() == ErrorCode::peer_lost ||
      error.code() == ErrorCode::peer_silent)
    may_tell_launcher_of_error = false;
  if (!error.tensor().empty() || name.empty()) return error;
  const bool is_prefixed =
      error.code() == ErrorCode::peer_left || error.code() == ErrorCode::closed;
  Error own = is_prefixed ? Error(error.code(), fmt::format("\"{}\": {}", name, error.what()))
                                .with_rank(error.rank())
                          : error;
  return own.with_tensor(name);
}

// --- a rank that closes -------------------------------------------------------------------------

RankStatus Engine::status() const {
  auto status = scheduler_->status();
  status.blocking_calls = blocking_runs_;
  status.blocking = blocking_;
  return status;
}

Farewell Engine::farewell() const {
  auto farewell = scheduler_->farewell();
  farewell.blocking_done = blocking_failed_ > 0 ? blocking_failed_ - 1 : blocking_calls_done();
  const std::lock_guard lock(submit_mutex_);
  if (departed_) farewell.cause = departed_->rank();
  farewell.error = departed_ ? departed_error_ : closing_error_;
  return farewell;
}

// tutti-run then tells this rank from those that end because it left, whichever process is faster.
// Takes a second at most, for its store may stand still.
void Engine::tell_launcher_of_error() {
  const auto& [url, secret, rank] = options_.launcher_store;
  {
    const std::lock_guard lock(submit_mutex_);
    if (url.empty() || closing_error_.empty()) return;
  }
  if (!may_tell_launcher_of_error.exchange(false)) return;
  const auto deadline = Deadline::after(0.5);
  try {
    const auto [host, port] = parse_store_url(url);
    const auto store = bounded(connect_tcp_store(host, port, secret, deadline), deadline);
    write_first_error(*store, {rank, options_.incarnation});
  } catch (const std::exception&) {
    // The launcher is gone and needs no verdict, or names the process that ends first.
  }
}

void Engine::say_farewell(const Farewell& farewell) {
  auto message = begin_message(MessageType::leaving);
  encode(message, farewell);
  for (int peer = 0; peer < context_.size; ++peer)
    if (peer != context_.rank) send(peer, message.bytes());
}

// `why`: the error because of which that rank closed; empty: none is known.
Error Engine::left_error(int rank, const std::string& why) const {
  std::string text;
  if (why.empty())
    text = fmt::format(
        "{} closed its Communicator, so nothing that needs all ranks can be done any more. Where "
        "ranks have uneven numbers of steps, those that are out of data call join() before they "
        "close; {}",
        describe_rank(rank), how_to_go_on());
  else
    text = fmt::format(
        "{} closed its Communicator because of an error ({}), so nothing that needs all ranks can "
        "be done any more; {}",
        describe_rank(rank), why, how_to_go_on());
  return Error(ErrorCode::peer_left, text).with_rank(rank);
}

// Operations that rank `from` has finished end here too. All others that need it fail now, and not
// when its connection ends, which shared memory would not even notice.
void Engine::on_farewell(int from, Farewell farewell) {
  const auto index = static_cast<size_t>(from);
  if (said_farewell_[index] || broken()) return;
  said_farewell_[index] = true;
  liveness_.left(from);
  const int cause = farewell.first_to_leave(from, context_.rank, context_.size);
  const auto why = one_line(farewell.error, Farewell::kLongestError);
  const auto error = left_error(cause, why);
  scheduler_->on_farewell(from, std::move(farewell), error);
  if (coordinator_) coordinator_->on_left(from, error);
  {
    const std::lock_guard lock(submit_mutex_);
    if (!departed_) {
      departed_ = error;
      departed_error_ = why;
    }
  }
  if (!left_) left_ = error;
}

int Engine::gone_rank() const {
  const std::lock_guard lock(submit_mutex_);
  if (departed_) return departed_->rank();
  // Other errors name ranks that are late, or disagree.
  const bool is_gone = broken_ && (broken_->code() == ErrorCode::peer_lost ||
                                   broken_->code() == ErrorCode::peer_silent ||
                                   broken_->code() == ErrorCode::peer_left);
  return is_gone ? broken_->rank() : -1;
}

// --- a rank that is gone ------------------------------------------------------------------------

void Engine::handle_peer_events() {
  while (const auto event = transport_.take_event()) {
    posted_ = true;  // answers may follow
    if (gone_[static_cast<size_t>(event->peer)]) continue;
    gone_[static_cast<size_t>(event->peer)] = true;
    liveness_.left(event->peer);
    if (!timeline_done_[static_cast<size_t>(event->peer)]) {
      timeline_done_[static_cast<size_t>(event->peer)] = true;
      --timelines_missing_;
    }
    if (broken()) continue;
    if (event->kind == PeerEvent::Kind::left) {
      on_farewell(event->peer, {});  // it said so before; a plain goodbye promises nothing
    } else if (!said_farewell_[static_cast<size_t>(event->peer)]) {
      const auto error = peer_lost_error(event->peer, event->detail);
      if (!broken()) fault(blame_for(error), true);
    }
  }
}

const Error* Engine::why_never(const Entry& entry) const {
  if (!left_ || is_dead_ || is_shut_) return left_ ? &*left_ : nullptr;
  return scheduler_->departure_that_ends(entry);
}

// The first cause: a rank that was lost because another one had closed before is none, unless an
// operation that is pending here still needs it.
Error Engine::blame_for(const Error& lost) {
  std::optional<Error> before;
  {
    const std::lock_guard lock(submit_mutex_);
    before = departed_;
  }
  if (!before) return lost;
  scheduler_->advance(Clock::now());
  const bool is_needed =
      !scheduler_->idle() || (!blocking_.empty() && blocking_number_ == 0 &&
                              std::ranges::count(blocking_peers_, lost.rank()) > 0);
  return is_needed ? lost : *before;
}

// The launcher knows best how a rank ended. It gets a moment to write that into the store, and this
// rank waits no longer than that, whether the store answers or not. The peer may also have ended
// because of another rank: then the launcher saw that one fail first, or a third rank tells of it
// in a fault, perhaps after this rank saw the peer's end.
Error Engine::peer_lost_error(int peer, const std::string& detail) {
  const auto& place = context_.places[static_cast<size_t>(peer)];
  const bool is_here = sees_process_of(peer);
  std::string how = fmt::format("was lost ({})", detail);
  int lost = -1;
  const auto deadline = Deadline::after(DeathReader::kLongestWait);
  try {
    while (!broken() && !deadline.passed()) {
      const auto known = deaths_->read(deadline, std::chrono::milliseconds(5));
      lost = first_to_fail(known.deaths, peer, how);
      if (lost >= 0) break;
      backend_->progress();
      handle_messages();
      if (is_here && process_state(place.pid) == ProcessState::ended)
        how = "ended without closing its Communicator (its process exited or was killed)";
      // The store died with that rank, so only what this rank saw on the wire can be reported.
      if (known.is_all) break;
    }
  } catch (const Error&) {
    // This error is a consequence of that rank's end, too.
  }
  deaths_->stop();
  if (lost < 0) lost = peer;
  return Error(ErrorCode::peer_lost,
               fmt::format("{} {}{}; {}", describe_rank(lost), how, in_flight(), how_to_go_on()))
      .with_rank(lost);
}

// The first member in the launcher's record that failed, or `peer` however it ended; -1: neither. A
// rank that has said goodbye is passed over, however it ended later.
int Engine::first_to_fail(const std::vector<Death>& deaths, int peer, std::string& how) const {
  for (const auto& death : deaths) {
    const auto place =
        std::find_if(context_.places.begin(), context_.places.end(), [&](const Place& member) {
          return LaunchedRank{member.world_rank, member.incarnation} == death.who;
        });
    const int rank = static_cast<int>(place - context_.places.begin());
    if (rank >= context_.size || rank == context_.rank) continue;
    if (rank != peer && (gone_[static_cast<size_t>(rank)] || !death.failed())) continue;
    how = fmt::format("{} without closing its Communicator", describe_death(death));
    return rank;
  }
  return -1;
}

void Engine::fault(const Error& error, bool tell_others) {
  {
    const std::lock_guard lock(submit_mutex_);
    if (broken_) return;
    broken_ = error;
    is_broken_ = true;
  }
  const bool idle = scheduler_->idle();
  if (idle) log(LogLevel::error, error.what());
  if (tell_others) {
    auto message = begin_message(MessageType::fault);
    encode(message, error);
    for (int peer = 0; peer < context_.size; ++peer)
      if (peer != context_.rank) send(peer, message.bytes());
    // The messages just posted should leave before the transport is shut, as far as they can
    // without waiting for a peer to read.
    const auto deadline = Deadline::after(0.02);
    while (backend_->progress() && !deadline.passed()) {
    }
  }
  end(error);
}

void Engine::raise_when_over(std::shared_ptr<uint32_t> word) {
  const std::lock_guard lock(submit_mutex_);
  // What the engine alone holds nobody looks at.
  std::erase_if(raised_when_over_, [](const auto& one) { return one.use_count() == 1; });
  raised_when_over_.push_back(std::move(word));
  if (!usable_) raise_all();
}

void Engine::raise_all() {
  for (const auto& word : raised_when_over_)
    std::atomic_ref(*word).store(1, std::memory_order_release);
  raised_when_over_.clear();
}

// This rank sends nothing after it and reads nothing, so the poller forgets the backend.
void Engine::end(const Error& error) {
  left_ = error;
  is_dead_ = true;
  backend_->abort(error);
  backend_->progress();
  poller_.forget(backend_->descriptor());
  loopback_.clear();
  fail_all(error);
  {
    // Only now: a thread whose call is refused frees its tensors, and operations that it submitted
    // before may have worked on these until here.
    const std::lock_guard lock(submit_mutex_);
    usable_ = false;
    raise_all();
  }
  take_submissions();
}

}  // namespace tutti
