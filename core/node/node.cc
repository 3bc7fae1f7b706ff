#include "tutti/core/node/node.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/base/check.h"

namespace tutti {

Node::Node(const Options& options, const Context& context, Ports ports)
    : options_(options),
      context_(context),
      backend_(ports.backend),
      transport_(*ports.backend.transport()),
      outside_(ports.outside),
      timeline_(ports.timeline),
      peers_(context.size),
      overseer_(options, context, ports.outside),
      gathering_(context.rank, context.size) {
  const auto send_hook = [this](int rank, std::span<const std::byte> message) {
    send(rank, message);
  };
  if (context_.rank == 0)
    coordinator_ = std::make_unique<Coordinator>(options_, context_.size, send_hook);
  Scheduler::Hooks hooks;
  hooks.send = send_hook;
  hooks.finish = [this](std::span<Entry* const> entries, const Error* error) {
    outside_.finish(entries, error);
  };
  hooks.on_its_way = [this] { outside_.on_its_way(); };
  hooks.broken = [this](const std::string& what) {
    const auto* departure = peers_.first();
    fault(departure != nullptr
              ? departure->error
              : Error(ErrorCode::internal,
                      fmt::format("rank {}: {} although no rank was lost; make a new "
                                  "Communicator, and please report it",
                                  context_.rank, what)),
          true);
  };
  hooks.log = [this](const std::string& line) { outside_.log(LogLevel::info, line); };
  scheduler_ = std::make_unique<Scheduler>(options_, backend_, peers_, context_.rank, context_.size,
                                           ports.counting, timeline_, std::move(hooks));
}

void Node::become(Phase next) {
  TUTTI_CHECK(may_follow(phase_, next));
  phase_ = next;
}

void Node::abandon() {
  is_abandoned_ = true;
  refusal_ = closed_error();
  become(Phase::over);
}

// --- one step -----------------------------------------------------------------------------------

bool Node::step(Batch& batch, Clock::time_point now) {
  posted_ = submitted_late_ = false;
  const auto before = phase_;
  bool moved = take(batch, now);
  if (!is_dead()) {
    moved |= backend_.progress();
    moved |= handle_messages(now);
  }
  if (!is_dead()) handle_peer_events(now);
  if (operations_go_on()) moved |= scheduler_->advance(now);
  if (phase_ == Phase::inquiring) inquire(now);
  if (!deferred_.empty() && take_deferred(now)) moved = submitted_late_ = true;
  if (phase_ == Phase::closing) go_on_closing(batch.is_told, now);
  if (operations_go_on()) watch(now);
  if (posted_ && !is_dead()) {
    moved |= handle_messages(now);
    if (!is_dead()) backend_.progress();
    moved = true;
  }
  // A new phase counts as progress: everything that waits must be checked again, and nothing else
  // would trigger that.
  return moved || phase_ != before;
}

bool Node::take(Batch& batch, Clock::time_point now) {
  is_watched_ = batch.is_watched;
  if (batch.deaths && phase_ == Phase::inquiring)
    inquiry_.on_deaths(*batch.deaths, context_, peers_);
  batch.deaths.reset();
  // Empties the batch first. If something throws, the batch's entries fail, and they must not be
  // taken a second time.
  taken_.clear();
  taken_.swap(batch.operations);
  joining_.clear();
  joining_.swap(batch.joins);
  const bool has_any = !taken_.empty() || !joining_.empty();
  for (Entry* entry : taken_) {
    if (const auto* why = why_never(*entry))
      outside_.finish({&entry, 1}, why);
    else if (!entry->behind.empty() || phase_ == Phase::inquiring)
      deferred_.push_back(entry);
    else
      scheduler_->submit(entry, now);
  }
  scheduler_->flush();
  for (Entry* entry : joining_) {
    if (const auto* why = why_never(*entry))
      outside_.finish({&entry, 1}, why);
    else if (!deferred_.empty())
      deferred_.push_back(entry);  // a join must come after the deferred operations
    else
      scheduler_->join(entry, now);
  }
  // A join that was submitted before the close counts, so submitted operations are taken first. An
  // inquiry ends before this rank closes, so that its peers learn the result.
  if (batch.closes && phase_ != Phase::inquiring && phase_ != Phase::closing &&
      phase_ != Phase::over)
    begin_closing(batch.error, now);
  return has_any;
}

// --- tensors behind a stream that waits ---------------------------------------------------------

// A tensor may be computed on a stream that first waits for the Work of another tensor. Then the
// two tensors must not be in one bucket, and the later tensor must not be in an earlier bucket.
// Otherwise the bucket would wait for itself on the device, and no timeout of this class would
// notice. The scheduler therefore gets the later tensor only when that Work is done. The contents
// of the later tensor cannot be complete before.
bool Node::take_deferred(Clock::time_point now) {
  if (phase_ == Phase::inquiring) return false;
  bool others_wait = false;
  const auto count = std::erase_if(deferred_, [&](Entry* entry) {
    if (const auto* why = why_never(*entry)) {
      outside_.finish({&entry, 1}, why);
      return true;
    }
    if (entry->request.join) {
      if (others_wait) return false;
      scheduler_->flush();
      scheduler_->join(entry, now);
      return true;
    }
    std::erase_if(entry->behind, [](const std::weak_ptr<WorkState>& work) {
      const auto state = work.lock();
      return !state || state->done();
    });
    if (!entry->behind.empty()) {
      others_wait = true;
      return false;
    }
    scheduler_->submit(entry, now);
    return true;
  });
  if (count > 0) scheduler_->flush();
  return count > 0;
}

// --- the state of operations --------------------------------------------------------------------

// Returns the error if an operation that is submitted now can never complete, else null.
const Error* Node::why_never(const Entry& entry) const {
  return refusal_ ? &*refusal_ : scheduler_->departure_that_ends(entry);
}

const Error* Node::why_blocking_never_ends() const {
  if (refusal_) return &*refusal_;
  const auto* departure = blocking_.departure_that_ends(peers_);
  return departure == nullptr ? nullptr : &departure->error;
}

bool Node::may_hear_why(const Error* reason, Clock::time_point since, Clock::time_point now) const {
  if (why_blocking_never_ends() != nullptr) return false;
  return phase_ == Phase::inquiring || (reason == nullptr && now < since + kLongestSilence);
}

Error Node::why_blocking_failed(const Error* reason) const {
  if (broken_) return *broken_;
  if (reason != nullptr) return *reason;
  if (const auto* why = why_blocking_never_ends()) return *why;
  // A rank that left may have ended its link before everything that this rank sent had arrived.
  if (const auto* departure = peers_.first()) return departure->error;
  return Error(ErrorCode::internal, fmt::format("rank {}: \"{}\" failed although no rank was lost",
                                                context_.rank, blocking_.name()));
}

bool Node::pending() const {
  return is_watched_ || blocking_.is_waiting() || !scheduler_->idle() || scheduler_->has_doomed() ||
         !deferred_.empty() || (coordinator_ && !coordinator_->idle());
}

bool Node::arm() { return is_dead() || backend_.arm(); }

Clock::time_point Node::wake_at() const {
  switch (phase_) {
    case Phase::running:
    case Phase::departing:
      return std::min(scheduler_->next_deadline(), overseer_.wake_at());
    case Phase::inquiring:
      return inquiry_.next_look();
    case Phase::closing:
      return closing_.until;
    case Phase::forming:
    case Phase::broken:
    case Phase::over:
      break;
  }
  return Clock::time_point::max();
}

// While operations run, the plan must be checked too.
Clock::time_point Node::wake_at_for_driver() const {
  return operations_go_on() ? std::min(wake_at(), scheduler_->next_look()) : wake_at();
}

std::string Node::in_flight() const {
  if (blocking_.is_waiting()) return fmt::format(" while \"{}\" was in flight", blocking_.name());
  const auto& runs = scheduler_->runs();
  if (!runs.empty())
    return fmt::format(" while {} was in flight", Scheduler::describe(*runs.front()));
  const auto name = scheduler_->first_pending();
  return name.empty() ? std::string() : fmt::format(" while \"{}\" waited for all ranks", name);
}

RankStatus Node::status() const {
  auto status = scheduler_->status();
  status.blocking_calls = blocking_.begun();
  status.blocking = blocking_.name();
  return status;
}

// Sends pings and reports stalls, but only while something is pending.
void Node::watch(Clock::time_point now) {
  if (!pending()) {
    overseer_.rest(now);
    return;
  }
  if (!overseer_.is_due(now)) return;
  const auto verdict = overseer_.look({*scheduler_, coordinator_.get(), blocking_, backend_,
                                       [this] { return status(); }, [this] { return in_flight(); }},
                                      now);
  const auto ping = begin_message(MessageType::ping);
  for (const int peer : verdict.ping) send(peer, ping.bytes());
  if (verdict.fault) fault(*verdict.fault, true);
}

}  // namespace tutti
