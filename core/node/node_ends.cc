// Handles the end of ranks. This file announces that this rank closes and handles the farewell of a
// peer. It fails pending operations when a peer is lost or a fault (an error that ends the
// communicator) arrives.

#include <fmt/format.h>

#include <new>

#include "tutti/base/text.h"
#include "tutti/core/node/members.h"
#include "tutti/core/node/node.h"

namespace tutti {

// --- a peer closes ------------------------------------------------------------------------------

// Makes the error about rank `rank`, which closed. `why` is the error because of which it closed;
// empty: none is known.
Error Node::left_error(int rank, const std::string& why) const {
  std::string text;
  if (why.empty())
    text = fmt::format(
        "{} closed its Communicator, so nothing that needs all ranks can be done any more. If "
        "ranks have different numbers of steps, those that are out of data must call join() before "
        "they close; {}",
        describe_rank(context_, rank), how_to_go_on(context_));
  else
    text = fmt::format(
        "{} closed its Communicator because of an error ({}), so nothing that needs all ranks can "
        "be done any more; {}",
        describe_rank(context_, rank), why, how_to_go_on(context_));
  return Error(ErrorCode::peer_left, text).with_rank(rank);
}

// Handles the farewell of rank `from`. Operations that this rank `from` has finished complete here
// too. All other operations that need it fail now. They do not wait for the end of its connection,
// which shared memory would not even notice.
void Node::on_farewell(int from, Farewell farewell) {
  if (is_dead() || peers_.departure_of(from) != nullptr) return;
  overseer_.left(from);
  const int cause = farewell.first_to_leave(from, context_.rank, context_.size);
  auto why = one_line(farewell.error, Farewell::kLongestError);
  const auto error = left_error(cause, why);
  const bool is_first = peers_.first() == nullptr;
  const auto joins = farewell.joins;
  peers_.on_farewell({from, std::move(farewell), error, std::move(why)});
  if (coordinator_) coordinator_->on_left(from, error, joins);
  if (is_first) outside_.on_first_departure(cause);
  if (phase_ == Phase::running) become(Phase::departing);
}

// --- a peer is gone -----------------------------------------------------------------------------

void Node::handle_peer_events(Clock::time_point now) {
  while (const auto event = transport_.take_event()) {
    posted_ = true;  // the event may make this rank send messages
    const auto state = peers_.on_end(event->peer, event->kind);
    if (state == Peers::State::here) continue;
    overseer_.left(event->peer);
    gathering_.on_end(event->peer);
    // If the rank sent a farewell, this rank has received it before this event. A goodbye of the
    // transport alone does not say which operations the rank finished.
    if (event->kind == PeerEvent::Kind::left) on_farewell(event->peer, {});
    if (state != Peers::State::lost || !operations_go_on()) continue;
    inquiry_.open(event->peer, event->detail, now);
    become(Phase::inquiring);
    outside_.ask_for_deaths();
  }
}

// Ends the inquiry if the cause is known. A third rank may send the cause earlier in a fault
// message. In that case this rank is already broken and makes no inquiry.
void Node::inquire(Clock::time_point now) {
  const int peer = inquiry_.peer();
  const auto process =
      sees_process_of(context_, peer) ? outside_.process_of(peer) : ProcessState::runs;
  const auto verdict = inquiry_.look(now, process);
  if (!verdict) return;
  outside_.stop_asking();
  const auto error =
      Error(ErrorCode::peer_lost, fmt::format("{} {}{}; {}", describe_rank(context_, verdict->rank),
                                              verdict->how, in_flight(), how_to_go_on(context_)))
          .with_rank(verdict->rank);
  fault(blame_for(error, now), true);
}

// Returns the first cause of a loss. A rank that was lost after another rank had closed is not the
// cause, unless a pending operation of this rank still needs the lost rank.
Error Node::blame_for(const Error& lost, Clock::time_point now) {
  if (peers_.first() == nullptr) return lost;
  scheduler_->advance(now);
  const bool is_needed = !scheduler_->idle() || blocking_.needs(lost.rank());
  return is_needed ? lost : peers_.first()->error;
}

// --- the communicator breaks --------------------------------------------------------------------

void Node::fault(const Error& error, bool tell_others) {
  if (broken_ || is_dead()) return;
  broken_ = error;
  const bool idle = scheduler_->idle();
  outside_.set_door(Door::breaking, error);
  if (idle) outside_.log(LogLevel::error, error.what());
  if (tell_others) {
    auto message = begin_message(MessageType::fault);
    encode(message, error);
    send_to_all(message);
    // Lets the transport send the fault messages before it is shut down, as far as that is possible
    // without waiting for a peer to read. The number of rounds is limited. Otherwise a peer that
    // keeps sending could hold this rank here.
    constexpr int kMostRounds = 100;
    for (int round = 0; round < kMostRounds && backend_.progress(); ++round) {
    }
  }
  break_off(error);
}

// After this call, this rank sends and reads nothing any more.
void Node::break_off(const Error& error) {
  if (phase_ == Phase::inquiring) outside_.stop_asking();
  refusal_ = error;
  become(Phase::broken);
  backend_.abort(error);
  backend_.progress();
  loopback_.clear();
  finish_breaking(error);
}

// The door (which refuses new calls) is shut last. A program frees a call's tensors when the call
// is refused, and its earlier operations may use these tensors until they have ended.
void Node::finish_breaking(const Error& error) {
  fail_all(error);
  outside_.set_door(Door::broken, error);
}

Error Node::error_of_exception() const {
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
    return because(ErrorCode::internal, "something was thrown that is not a std::exception");
  }
}

void Node::on_thrown(const Error& error) noexcept {
  try {
    fault(error, true);
  } catch (...) {
    // The peers notice this rank's end without having read its fault message.
  }
  try {
    if (!is_dead())
      break_off(broken_ ? *broken_ : error);
    else if (phase_ == Phase::broken)
      finish_breaking(*refusal_);
  } catch (...) {
    // If there is not even memory for this, pending operations end when the program closes.
  }
}

// The Outside (the engine) knows every pending operation, whichever list contains it. So it also
// fails an operation that was between two lists when something was thrown.
void Node::fail_all(const Error& error) {
  scheduler_->drop();
  deferred_.clear();
  outside_.finish_all(error);
}

// --- this rank closes ---------------------------------------------------------------------------

Error Node::closed_error() const {
  return Error(ErrorCode::closed,
               fmt::format("rank {} closed this Communicator while the operation was pending",
                           context_.rank));
}

void Node::begin_closing(const std::string& error, Clock::time_point now) {
  if (phase_ == Phase::broken || phase_ == Phase::forming) {
    if (!refusal_) refusal_ = closed_error();
    fail_all(*refusal_);
    become(Phase::over);
    return;
  }
  closing_.farewell = scheduler_->farewell();
  closing_.farewell.blocking_done = blocking_.finished();
  const auto* departure = peers_.first();
  if (departure != nullptr) closing_.farewell.cause = departure->error.rank();
  closing_.farewell.error = departure != nullptr ? departure->why : error;
  refusal_ = closed_error();
  become(Phase::closing);
  fail_all(*refusal_);
  const bool is_asked = !error.empty() && outside_.tell_launcher();
  closing_.until = is_asked ? now + Closing::kLongestTelling : now;
}

// The launcher receives this rank's error first, because the peers may end because of it.
void Node::go_on_closing(bool is_told, Clock::time_point now) {
  if (closing_.stage == Closing::Stage::telling) {
    if (!is_told && now < closing_.until) return;
    auto message = begin_message(MessageType::leaving);
    encode(message, closing_.farewell);
    send_to_all(message);
    if (!options_.timeline.empty()) send_timeline();
    closing_.stage = Closing::Stage::gathering;
    closing_.until = now + std::chrono::duration_cast<Clock::duration>(
                               std::chrono::duration<double>(options_.close_timeout));
  }
  const bool gathers = context_.rank == 0 && gathering_.has_own();
  if (gathers && !gathering_.is_whole() && now < closing_.until) return;
  become(Phase::over);
}

// Sends the timeline that this rank recorded to rank 0, which collects them.
void Node::send_timeline() {
  gathering_.set_own(timeline_.stop());
  if (context_.rank == 0) return;
  constexpr size_t kPart = 1 << 20;
  const std::string_view own = gathering_.timelines()[static_cast<size_t>(context_.rank)];
  for (size_t at = 0; at < own.size(); at += kPart) {
    auto part = begin_message(MessageType::timeline);
    for (const char c : own.substr(at, kPart)) part.put(c);
    send(0, part.bytes());
    backend_.progress();
  }
  send(0, begin_message(MessageType::timeline).bytes());
}

}  // namespace tutti
