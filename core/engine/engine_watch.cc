// The watch over what is pending: which ranks are silent, which are late, which operations can
// never end or take longer than the program allows. It runs only while something is pending.

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tutti/base/process/process_state.h"
#include "tutti/base/text.h"
#include "tutti/core/engine/engine.h"

namespace tutti {

namespace {

Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

RankKnowledge Engine::knowledge_of(int rank, Clock::time_point now) const {
  if (rank == context_.rank) return {status(), 0, false};
  const auto index = static_cast<size_t>(rank);
  RankKnowledge known{statuses_[index], liveness_.seconds_since_heard(rank, now), false};
  if (known.heard_seconds > Liveness::kEvidence && sees_process_of(rank))
    known.is_stopped = process_state(context_.places[index].pid) == ProcessState::stopped;
  return known;
}

bool Engine::is_on_this_host(int rank) const {
  return context_.places[static_cast<size_t>(rank)].host ==
         context_.places[static_cast<size_t>(context_.rank)].host;
}

bool Engine::sees_process_of(int rank) const {
  return is_on_this_host(rank) && context_.places[static_cast<size_t>(rank)].shares_pids(
                                      context_.places[static_cast<size_t>(context_.rank)]);
}

std::string Engine::describe_late_ranks(const std::vector<int>& ranks,
                                        Clock::time_point now) const {
  constexpr size_t kMost = 3;
  std::string text;
  for (size_t i = 0; i < std::min(kMost, ranks.size()); ++i)
    text += ' ' + describe_late_rank(ranks[i], knowledge_of(ranks[i], now));
  return text;
}

// Ranks that have not launched this Run, as far as they have told.
std::vector<int> Engine::ranks_behind(const Run& run) const {
  const auto& collective = run.collective();
  const auto plan = static_cast<uint32_t>(run.tag() >> Plan::kSequenceBits);
  std::vector<int> ranks;
  if (run.pair != nullptr) {
    if (run.operation()->lacks_ranks()) ranks.push_back(collective.root);
    return ranks;
  }
  for (int rank = 0; rank < context_.size; ++rank) {
    if (rank == context_.rank || (is_pair(collective.kind) && rank != collective.root)) continue;
    const auto& status = statuses_[static_cast<size_t>(rank)];
    const bool is_behind =
        !status || (run.replayed ? status->plan < plan || (status->plan == plan &&
                                                           status->next_sequence <= run.sequence)
                                 : status->next_tag <= run.tag());
    if (is_behind) ranks.push_back(rank);
  }
  return ranks;
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
    // The peer's answers may wait behind data that a slow link brings: bytes count as an answer.
    const double quiet = transport_.quiet_seconds(peer);
    if (quiet <= options_.peer_timeout) liveness_.heard(peer, now - duration_of(quiet));
  }
  const auto result = liveness_.tick(now, busy && context_.size > 1);
  next_stall_check_ = Clock::time_point::max();
  if (!busy) {
    next_stall_check_ = Clock::time_point::min();
    stalls_reported_.clear();
    return;
  }
  if (!result.silent.empty()) {
    // A rank that was stopped while it wrote into a queue of this rank into which all peers write
    // (UCX's) keeps this rank from hearing the others, so several seem silent.
    const auto& silent = result.silent;
    const auto stopped = std::find_if(silent.begin(), silent.end(),
                                      [&](int peer) { return knowledge_of(peer, now).is_stopped; });
    const int peer = stopped == silent.end() ? silent.front() : *stopped;
    fault(
        Error(ErrorCode::peer_silent,
              fmt::format("{} is silent: no answer for {:.1f} s{}; it was stopped, or cut off; {}",
                          describe_rank(peer), liveness_.quiet_seconds(peer, now), in_flight(),
                          how_to_go_on()))
            .with_rank(peer),
        true);
    return;
  }
  const auto ping = begin_message(MessageType::ping);
  for (const int peer : result.ping) send(peer, ping.bytes());
  next_stall_check_ = result.next;
  if (end_what_never_meets(now) || end_what_is_overdue(now)) return;
  report_stalls(now);
  control_deadline_ = next_stall_check_;
}

// --- what can never end -------------------------------------------------------------------------

// Blocking calls are matched by their order, asynchronous ones by name; and a rank that has joined
// takes part in asynchronous ones only. So two ranks of which one waits in a blocking call and the
// other for an asynchronous one of that name, or in join(), wait for ever.
std::optional<Error> Engine::what_never_meets(Clock::time_point now) const {
  const auto status_of = [&](int rank) -> const RankStatus* {
    const auto& status = statuses_[static_cast<size_t>(rank)];
    const bool is_fresh = liveness_.seconds_since_heard(rank, now) <= Liveness::kEvidence;
    return rank != context_.rank && status && is_fresh ? &*status : nullptr;
  };
  for (int rank = 0; rank < context_.size; ++rank) {
    const auto* status = status_of(rank);
    if (status == nullptr || status->blocking.empty() || !scheduler_->is_awaited(status->blocking))
      continue;
    return Error(ErrorCode::mismatch,
                 fmt::format("\"{}\": rank {} waits in a blocking call (allreduce_blocking), rank "
                             "{} for an asynchronous one of that name: on backend {} the two never "
                             "meet. Call it the same way on all ranks",
                             status->blocking, rank, context_.rank, context_.name))
        .with_rank(rank)
        .with_tensor(status->blocking);
  }
  if (blocking_.empty()) return {};
  for (const int rank : backend_->missing(kBlockingQueue)) {
    const auto* status = status_of(rank);
    if (status == nullptr || !status->joined) continue;
    return Error(ErrorCode::mismatch,
                 fmt::format("\"{}\": rank {} waits in a blocking call, but rank {} has joined (is "
                             "out of data) and will not make it: join() stands in for asynchronous "
                             "allreduces only. Call allreduce(...).wait() where ranks may have "
                             "joined",
                             blocking_, context_.rank, rank))
        .with_rank(rank)
        .with_tensor(blocking_);
  }
  return {};
}

// After half a second, not at once: where a rank is may have changed since its last pong, and two
// more pongs come in that time.
bool Engine::end_what_never_meets(Clock::time_point now) {
  constexpr auto kGrace = std::chrono::milliseconds(500);
  const auto error = what_never_meets(now);
  if (!error) {
    never_meets_.clear();
    return false;
  }
  if (never_meets_ != error->what()) {
    never_meets_ = error->what();
    never_meets_since_ = now;
  }
  if (now - never_meets_since_ < kGrace) return false;
  fault(*error, true);
  return true;
}

// --- what takes too long ------------------------------------------------------------------------

bool Engine::end_what_is_overdue(Clock::time_point now) {
  if (options_.operation_timeout <= 0) return false;
  const auto limit = duration_of(options_.operation_timeout);
  // True if the communicator was ended. `late` says which ranks the operation waits for.
  const auto look = [&](Clock::time_point since, const std::string& what, std::string_view name,
                        auto&& late) {
    if (now < since + limit) {
      next_stall_check_ = std::min(next_stall_check_, since + limit);
      return false;
    }
    const std::vector<int> ranks = late();
    const auto why = ranks.empty() ? std::string(" All ranks have come to it: its data is slow.")
                                   : fmt::format(" It waits for {}.{}", format_rank_set(ranks),
                                                 describe_late_ranks(ranks, now));
    fault(Error(ErrorCode::timeout,
                fmt::format("{} took more than TUTTI_OPERATION_TIMEOUT={} s.{} Allow more, or make "
                            "a new Communicator by shrink()",
                            what, options_.operation_timeout, why))
              .with_rank(ranks.empty() ? -1 : ranks.front())
              .with_tensor(name),
          true);
    return true;
  };
  for (const auto& run : scheduler_->runs()) {
    const auto* first = run->entries().empty() ? nullptr : run->entries().front();
    if (look(run->started, Scheduler::describe(*run), first ? first->request.name : "",
             [&] { return ranks_behind(*run); }))
      return true;
  }
  if (!blocking_.empty() &&
      look(blocking_since_, fmt::format("the blocking call \"{}\"", blocking_), blocking_,
           [&] { return backend_->missing(kBlockingQueue); }))
    return true;
  if (!coordinator_) return false;
  // Rank 0 looks for all ranks: the others do not know which ranks have asked for a name.
  for (const auto& waiting : coordinator_->waiting())
    if (look(waiting.since, fmt::format("\"{}\"", waiting.name), waiting.name,
             [&] { return waiting.missing; }))
      return true;
  return false;
}

// --- reports ------------------------------------------------------------------------------------

void Engine::report_stalls(Clock::time_point now) {
  // What waits no more is forgotten, also on a rank that is never idle.
  const auto before = std::exchange(stalls_reported_, {});
  const auto consider = [&](const std::string& key, Clock::time_point since, auto&& line) {
    const double seconds = seconds_between(since, now);
    const auto known = before.find(key);
    auto& reported = stalls_reported_[key] = known == before.end() ? 0 : known->second;
    if (stall_clock_.due(seconds, reported)) {
      reported = seconds;
      log(LogLevel::warning, line());
    }
    const auto next = since + duration_of(stall_clock_.next(reported));
    next_stall_check_ =
        std::min(next_stall_check_, std::max(next, now + std::chrono::milliseconds(10)));
  };
  if (coordinator_) {
    const auto waiting = coordinator_->waiting();
    std::vector<RankKnowledge> ranks;
    for (int rank = 0; rank < context_.size; ++rank) ranks.push_back(knowledge_of(rank, now));
    for (const auto& name : waiting)
      consider(name.name, name.since, [&] { return stall_line(name, waiting, ranks, now); });
  }
  if (!blocking_.empty()) {
    consider(fmt::format("blocking {}", blocking_), blocking_since_, [&] {
      const auto missing = backend_->missing(kBlockingQueue);
      auto line =
          fmt::format("\"{}\", a blocking call, waits for {} since {:.1f} s on rank {}.{}",
                      blocking_, format_rank_set(missing), seconds_between(blocking_since_, now),
                      context_.rank, describe_late_ranks(missing, now));
      for (const int rank : missing) {
        const auto& status = statuses_[static_cast<size_t>(rank)];
        if (status && status->outstanding > 0 && status->last_submitted == blocking_)
          line += fmt::format(
              " Rank {} submitted that name as an asynchronous one: the two never meet. Call it "
              "the same way on all ranks.",
              rank);
      }
      return line;
    });
  }
  for (const auto& run : scheduler_->runs()) {
    const auto name = Scheduler::describe(*run);
    consider("run " + name, run->started, [&] {
      return fmt::format("{} is in flight since {:.1f} s on rank {}.{}", name,
                         seconds_between(run->started, now), context_.rank,
                         describe_late_ranks(ranks_behind(*run), now));
    });
  }
}

}  // namespace tutti
