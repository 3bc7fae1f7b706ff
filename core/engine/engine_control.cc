// The part of the engine that talks with other ranks: control messages, deaths, reports.

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "tutti/base/text.h"
#include "tutti/core/engine/engine.h"
#include "tutti/core/watch/death.h"

namespace tutti {

void Engine::send(int rank, std::span<const std::byte> message) {
  posted_ = true;
  if (rank == context_.rank) {
    loopback_.emplace_back(message.begin(), message.end());
    return;
  }
  if (gone_[static_cast<size_t>(rank)]) return;
  const auto type = static_cast<MessageType>(message[0]);
  if (type == MessageType::requests || type == MessageType::answers) ++negotiation_messages_;
  transport_.post(rank, message);
}

bool Engine::handle_messages() {
  bool moved = false;
  int from = -1;
  while (true) {
    if (!loopback_.empty()) {
      const auto message = std::move(loopback_.front());
      loopback_.pop_front();
      handle(context_.rank, message);
    } else if (transport_.take(from, message_)) {
      handle(from, message_);
    } else if (coordinator_) {
      coordinator_->answer();
      if (loopback_.empty()) return moved;
    } else {
      return moved;
    }
    moved = true;
  }
}

void Engine::handle(int from, std::span<const std::byte> message) {
  const auto now = Clock::now();
  if (from != context_.rank) liveness_.heard(from, now);
  try {
    WireReader reader(message);
    const auto type = reader.enumeration<MessageType>(kMessageTypeCount);
    switch (type) {
      case MessageType::requests:
        if (coordinator_) coordinator_->on_requests(from, reader, now);
        break;
      case MessageType::plan_joined:
        if (coordinator_) coordinator_->on_plan_joined(from, reader);
        break;
      case MessageType::plan_failed:
        if (coordinator_) coordinator_->on_plan_failed(reader);
        break;
      case MessageType::plan_left:
        if (coordinator_) coordinator_->on_plan_left(from, reader);
        break;
      case MessageType::answers:
        scheduler_->on_answers(reader);
        break;
      case MessageType::resend:
        scheduler_->on_resend(reader);
        break;
      case MessageType::veto: {
        Veto veto;
        veto.plan = reader.get<uint32_t>();
        veto.sequence = reader.get<uint64_t>();
        scheduler_->on_veto(veto);
        break;
      }
      case MessageType::ping: {
        auto pong = begin_message(MessageType::pong);
        encode(pong, scheduler_->status());
        send(from, pong.bytes());
        break;
      }
      case MessageType::pong:
        statuses_[static_cast<size_t>(from)] = decode_status(reader);
        break;
      case MessageType::fault: {
        Error error = decode_error(reader);
        if (error.rank() == context_.rank)
          error = Error(error.code(), fmt::format("rank {} was given up by the others: {}",
                                                  context_.rank, error.what()))
                      .with_rank(context_.rank);
        fault(error, false);
        break;
      }
      case MessageType::timeline: {
        const auto rest = reader.rest();
        auto& events = timelines_[static_cast<size_t>(from)];
        if (!rest.empty()) {
          events.append(reinterpret_cast<const char*>(rest.data()), rest.size());
        } else if (!timeline_done_[static_cast<size_t>(from)]) {
          timeline_done_[static_cast<size_t>(from)] = true;
          --timelines_missing_;
        }
        break;
      }
    }
  } catch (const Error& error) {
    fault(
        Error(ErrorCode::corrupt_data,
              fmt::format("{} sent rank {} a message that cannot be: {}. Do all ranks run the same "
                          "version? Make a new Communicator",
                          describe_rank(from), context_.rank, error.what()))
            .with_rank(from),
        true);
  }
}

std::string Engine::describe_rank(int rank) const {
  const auto& place = context_.places[static_cast<size_t>(rank)];
  return fmt::format("rank {} (host {}, pid {})", rank, place.host_name, place.pid);
}

std::string Engine::in_flight() const {
  if (!blocking_.empty()) return fmt::format("while \"{}\" was in flight", blocking_);
  const auto& runs = scheduler_->runs();
  if (!runs.empty())
    return fmt::format("while {} was in flight", Scheduler::describe(*runs.front()));
  const auto last = scheduler_->status();
  if (last.outstanding > 0)
    return fmt::format("while \"{}\" waited for all ranks", last.last_submitted);
  return "while nothing was in flight";
}

void Engine::handle_peer_events() {
  while (const auto event = transport_.take_event()) {
    posted_ = true;  // answers may follow
    if (gone_[static_cast<size_t>(event->peer)]) continue;
    gone_[static_cast<size_t>(event->peer)] = true;
    if (!timeline_done_[static_cast<size_t>(event->peer)]) {
      timeline_done_[static_cast<size_t>(event->peer)] = true;
      --timelines_missing_;
    }
    if (event->kind == PeerEvent::Kind::lost) {
      if (broken()) continue;
      const auto error = peer_lost_error(event->peer, event->detail);
      if (!broken()) fault(error, true);
      continue;
    }
    if (left_ || broken()) continue;
    left_ =
        Error(ErrorCode::peer_left,
              fmt::format("{} closed its Communicator, so nothing that needs all ranks can be done "
                          "any more. Make a new Communicator without it",
                          describe_rank(event->peer)))
            .with_rank(event->peer);
    // What all ranks asked for before may still succeed: the coordinator knows, and its answers
    // come before its own goodbye.
    if (coordinator_) coordinator_->on_left(event->peer, *left_);
    if (event->peer == 0) scheduler_->fail_unanswered(*left_);
  }
}

// A launcher knows best how a rank ended; it gets a moment to say so. A peer may also have given up
// because of another rank: then it, or a third one, says so, perhaps after its end was seen.
Error Engine::peer_lost_error(int peer, const std::string& detail) {
  std::string how = fmt::format("was lost ({})", detail);
  const auto key = death_key(context_.places[static_cast<size_t>(peer)].world_rank);
  const auto deadline = Deadline::after(deaths_ ? 0.3 : 0.02);
  try {
    do {
      const auto text = deaths_ ? deaths_->try_get(key) : std::nullopt;
      if (const auto death = text ? decode_death(*text) : std::nullopt) {
        how = death->signal != 0 ? fmt::format("was killed by signal {}", death->signal)
                                 : fmt::format("exited with code {}", death->code);
        break;
      }
      backend_->progress();
      handle_messages();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    } while (!broken() && !deadline.passed());
  } catch (const Error&) {
    // The store died with that rank; what was seen on the wire is all there is to tell.
  }
  const int survivors = context_.size - 1;
  return Error(ErrorCode::peer_lost,
               fmt::format("{} {} {}. Make a new Communicator to go on with {} rank{}.",
                           describe_rank(peer), how, in_flight(), survivors,
                           survivors == 1 ? "" : "s"))
      .with_rank(peer);
}

void Engine::fault(const Error& error, bool tell_others) {
  {
    const std::lock_guard lock(submit_mutex_);
    if (broken_) return;
    broken_ = error;
  }
  const bool idle = scheduler_->idle();
  if (idle) log(LogLevel::error, error.what());
  if (tell_others) {
    auto message = begin_message(MessageType::fault);
    encode(message, error);
    for (int peer = 0; peer < context_.size; ++peer)
      if (peer != context_.rank) send(peer, message.bytes());
    // What was just posted should get out before the transport is shut, if it can without waiting
    // for anybody.
    const auto deadline = Deadline::after(0.02);
    while (backend_->progress() && !deadline.passed()) {
    }
  }
  backend_->abort(error);
  backend_->progress();
  fail_all(error);
  left_ = error;
  {
    // Only now: who is refused frees memory, which operations before may have worked on until here.
    const std::lock_guard lock(submit_mutex_);
    usable_ = false;
  }
  take_submissions();
}

// Probes and reports, only while something is pending.
void Engine::watch_peers(Clock::time_point now) {
  control_deadline_ = Clock::time_point::max();
  if (broken()) return;
  const bool busy = pending();
  if (now < next_stall_check_ && busy) {
    control_deadline_ = next_stall_check_;
    return;
  }
  for (int peer = 0; busy && peer < context_.size; ++peer) {
    if (peer == context_.rank) continue;
    // Its answers may wait behind data that a slow link brings.
    const double quiet = transport_.quiet_seconds(peer);
    if (quiet <= options_.peer_timeout)
      liveness_.heard(peer, now - std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(quiet)));
  }
  const auto result = liveness_.tick(now, busy && context_.size > 1);
  next_stall_check_ = Clock::time_point::max();
  if (!busy) {
    next_stall_check_ = Clock::time_point::min();
    stalls_reported_.clear();
    return;
  }
  if (!result.silent.empty()) {
    // Who was stopped while it wrote into memory that all write into made its reader deaf to all.
    const auto& silent = result.silent;
    const auto stopped = std::find_if(silent.begin(), silent.end(), [&](int peer) {
      const auto& place = context_.places[static_cast<size_t>(peer)];
      return place.host == context_.places[static_cast<size_t>(context_.rank)].host &&
             is_stopped(place.pid);
    });
    const int peer = stopped == silent.end() ? silent.front() : *stopped;
    fault(Error(ErrorCode::peer_silent,
                fmt::format(
                    "{} is silent: no answer for {:.1f} s {}; it was stopped, or cut off. Make "
                    "a new Communicator to go on with {} ranks",
                    describe_rank(peer), liveness_.quiet_seconds(peer, now), in_flight(),
                    context_.size - 1))
              .with_rank(peer),
          true);
    return;
  }
  const auto ping = begin_message(MessageType::ping);
  for (const int peer : result.ping) send(peer, ping.bytes());
  next_stall_check_ = result.next;
  report_stalls(now);
  control_deadline_ = next_stall_check_;
}

void Engine::report_stalls(Clock::time_point now) {
  const auto consider = [&](const std::string& key, Clock::time_point since, auto&& line) {
    const double seconds = std::chrono::duration<double>(now - since).count();
    auto& reported = stalls_reported_[key];
    if (stall_clock_.due(seconds, reported)) {
      reported = seconds;
      log(LogLevel::warning, line());
    }
    const auto next = since + std::chrono::duration_cast<Clock::duration>(
                                  std::chrono::duration<double>(stall_clock_.next(reported)));
    next_stall_check_ =
        std::min(next_stall_check_, std::max(next, now + std::chrono::milliseconds(10)));
  };
  if (coordinator_) {
    const auto waiting = coordinator_->waiting();
    std::vector<RankKnowledge> ranks;
    for (int rank = 0; rank < context_.size; ++rank)
      ranks.push_back(
          {rank == context_.rank ? scheduler_->status() : statuses_[static_cast<size_t>(rank)],
           rank == context_.rank ? 0 : liveness_.quiet_seconds(rank, now)});
    for (const auto& name : waiting)
      consider(name.name, name.since, [&] { return stall_line(name, waiting, ranks, now); });
  }
  if (!blocking_.empty()) {
    consider(fmt::format("blocking {}", blocking_), blocking_since_, [&] {
      return fmt::format("\"{}\", a blocking call, waits for {} since {:.1f} s on rank {}",
                         blocking_, format_rank_set(backend_->missing(kBlockingQueue)),
                         std::chrono::duration<double>(now - blocking_since_).count(),
                         context_.rank);
    });
  }
  for (const auto& run : scheduler_->runs()) {
    const auto name = Scheduler::describe(*run);
    consider("run " + name, run->started, [&] {
      std::vector<int> behind;
      for (int rank = 0; rank < context_.size; ++rank) {
        const auto& status = statuses_[static_cast<size_t>(rank)];
        if (rank != context_.rank && run->replayed && status.next_sequence <= run->sequence)
          behind.push_back(rank);
      }
      const double seconds = std::chrono::duration<double>(now - run->started).count();
      std::string line =
          fmt::format("{} is in flight since {:.1f} s on rank {}", name, seconds, context_.rank);
      for (const int rank : behind)
        line += fmt::format(". Rank {} is alive and has not reached it; it last submitted \"{}\"",
                            rank, statuses_[static_cast<size_t>(rank)].last_submitted);
      return line;
    });
    if (options_.operation_timeout > 0) {
      const auto due =
          run->started + std::chrono::duration_cast<Clock::duration>(
                             std::chrono::duration<double>(options_.operation_timeout));
      if (now >= due) {
        fault(Error(ErrorCode::timeout,
                    fmt::format("{} took more than TUTTI_OPERATION_TIMEOUT={} s; make a new "
                                "Communicator, or allow more",
                                name, options_.operation_timeout)),
              true);
        return;
      }
      next_stall_check_ = std::min(next_stall_check_, due);
    }
  }
}

// Rank 0 gathers what the others recorded and writes one file; a rank that cannot send, because the
// communicator broke, writes its own.
void Engine::collect_timelines(double seconds) {
  const auto own = timeline_.stop();
  try {
    if (seconds <= 0 && context_.size > 1) {
      write_timeline(fmt::format("{}.rank{}", options_.timeline, context_.rank), {own});
      return;
    }
    const auto deadline = Deadline::after(seconds);
    if (context_.rank != 0) {
      constexpr size_t kPart = 1 << 20;
      for (size_t at = 0; at < own.size(); at += kPart) {
        auto part = begin_message(MessageType::timeline);
        for (const char c : std::string_view(own).substr(at, kPart)) part.put(c);
        send(0, part.bytes());
        backend_->progress();
      }
      send(0, begin_message(MessageType::timeline).bytes());
      return;
    }
    while (timelines_missing_ > 0 && !deadline.passed()) {
      if (step()) continue;
      if (backend_->arm()) poller_.wait(std::min(deadline.poll_milliseconds(), 100));
    }
    timelines_[0] = own;
    write_timeline(options_.timeline, timelines_);
  } catch (const Error& error) {
    log(LogLevel::warning, fmt::format("rank {}: {}", context_.rank, error.what()));
  }
}

}  // namespace tutti
