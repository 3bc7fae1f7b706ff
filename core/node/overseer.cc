#include "tutti/core/node/overseer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tutti/base/text.h"
#include "tutti/core/node/members.h"

namespace tutti {

namespace {

Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// Returns the seconds between pings. Pings are so frequent that reports and errors show a late
// rank's current state.
double probe_interval(const Options& options) {
  double seconds = options.stall_warning / 2;
  if (options.operation_timeout > 0) seconds = std::min(seconds, options.operation_timeout / 2);
  return std::max(seconds, 0.01);
}

}  // namespace

Overseer::Overseer(const Options& options, const Context& context, Outside& outside)
    : options_(options),
      context_(context),
      outside_(outside),
      liveness_(context.rank, context.size, options.peer_timeout, probe_interval(options)),
      stall_clock_(options.stall_warning),
      statuses_(static_cast<size_t>(context.size)) {}

void Overseer::rest(Clock::time_point now) {
  liveness_.tick(now, false);
  reported_.clear();
  never_meets_.clear();
  next_ = Clock::time_point::min();
}

Overseer::Verdict Overseer::look(const Pending& pending, Clock::time_point now) {
  for (int peer = 0; peer < context_.size; ++peer) {
    if (peer == context_.rank) continue;
    // On a slow link the peer's pongs may queue behind data, so any bytes that arrive count as an
    // answer.
    const double quiet = pending.backend.transport()->quiet_seconds(peer);
    if (quiet <= options_.peer_timeout) liveness_.heard(peer, now - duration_of(quiet));
  }
  auto result = liveness_.tick(now, context_.size > 1);
  Verdict verdict;
  next_ = Clock::time_point::max();
  if (!result.silent.empty()) {
    verdict.fault = silence_of(result.silent, pending, now);
    return verdict;
  }
  verdict.ping = std::move(result.ping);
  next_ = result.next;
  verdict.fault = what_still_never_meets(pending, now);
  if (!verdict.fault) verdict.fault = what_is_overdue(pending, now);
  if (!verdict.fault) report_stalls(pending, now);
  return verdict;
}

// Returns the error about a silent rank. Several ranks may seem silent because of one stopped rank.
// With UCX all peers write into one queue of this rank. A peer that was stopped while it wrote
// blocks the messages of the other peers. So a stopped rank is named first.
Error Overseer::silence_of(const std::vector<int>& silent, const Pending& pending,
                           Clock::time_point now) const {
  const auto stopped = std::ranges::find_if(
      silent, [&](int peer) { return knowledge_of(peer, pending, now).is_stopped; });
  const int peer = stopped == silent.end() ? silent.front() : *stopped;
  return Error(ErrorCode::peer_silent,
               fmt::format("{} is silent: no answer for {:.1f} s{}; it was stopped, or cut off; {}",
                           describe_rank(context_, peer), liveness_.quiet_seconds(peer, now),
                           pending.in_flight(), how_to_go_on(context_)))
      .with_rank(peer);
}

RankKnowledge Overseer::knowledge_of(int rank, const Pending& pending,
                                     Clock::time_point now) const {
  if (rank == context_.rank) return {pending.own(), 0, false};
  RankKnowledge known{statuses_[static_cast<size_t>(rank)],
                      liveness_.seconds_since_heard(rank, now), false};
  if (known.heard_seconds > Liveness::kEvidence && sees_process_of(context_, rank))
    known.is_stopped = outside_.process_of(rank) == ProcessState::stopped;
  return known;
}

std::string Overseer::describe_late_ranks(const std::vector<int>& ranks, const Pending& pending,
                                          Clock::time_point now) const {
  constexpr size_t kMost = 3;
  std::string text;
  for (size_t i = 0; i < std::min(kMost, ranks.size()); ++i)
    text += ' ' + describe_late_rank(ranks[i], knowledge_of(ranks[i], pending, now));
  return text;
}

// Returns the ranks that have not launched this Run, according to their last pongs.
std::vector<int> Overseer::ranks_behind(const Run& run) const {
  const auto& collective = run.collective();
  const auto plan = static_cast<uint32_t>(run.tag() >> Plan::kSequenceBits);
  std::vector<int> ranks;
  if (run.is_in_pair()) {
    if (run.operation()->lacks_ranks()) ranks.push_back(collective.root);
    return ranks;
  }
  for (int rank = 0; rank < context_.size; ++rank) {
    if (rank == context_.rank || (is_pair(collective.kind) && rank != collective.root)) continue;
    const auto& status = statuses_[static_cast<size_t>(rank)];
    const bool is_behind =
        !status || (run.is_planned()
                        ? status->plan < plan ||
                              (status->plan == plan && status->next_sequence <= run.origin().number)
                        : status->next_tag <= run.tag());
    if (is_behind) ranks.push_back(rank);
  }
  return ranks;
}

// --- operations that can never complete ---------------------------------------------------------

// Finds two ranks that wait for each other for ever. Blocking calls are matched by their order,
// asynchronous calls by name. A rank that has joined takes part in asynchronous calls only. So one
// rank may wait in a blocking call and the other in an asynchronous call of the same name, or in
// join().
std::optional<Error> Overseer::find_deadlock(const Pending& pending, Clock::time_point now) const {
  const auto status_of = [&](int rank) -> const RankStatus* {
    const auto& status = statuses_[static_cast<size_t>(rank)];
    const bool is_fresh = liveness_.seconds_since_heard(rank, now) <= Liveness::kEvidence;
    return rank != context_.rank && status && is_fresh ? &*status : nullptr;
  };
  for (int rank = 0; rank < context_.size; ++rank) {
    const auto* status = status_of(rank);
    if (status == nullptr || status->blocking.empty() ||
        !pending.scheduler.is_awaited(status->blocking))
      continue;
    return Error(ErrorCode::mismatch,
                 fmt::format("\"{}\": rank {} waits in a blocking call (allreduce_blocking), rank "
                             "{} for an asynchronous one of that name: on backend {} the two never "
                             "meet. Call it the same way on all ranks",
                             status->blocking, rank, context_.rank, context_.name))
        .with_rank(rank)
        .with_tensor(status->blocking);
  }
  if (!pending.blocking.is_waiting()) return {};
  const auto name = pending.blocking.name();
  for (const int rank : pending.backend.missing(kBlockingQueue)) {
    const auto* status = status_of(rank);
    if (status == nullptr || !status->joined) continue;
    return Error(ErrorCode::mismatch,
                 fmt::format("\"{}\": rank {} waits in a blocking call, but rank {} has joined (is "
                             "out of data) and will not make it: join() stands in for asynchronous "
                             "allreduces only. Call allreduce(...).wait() where ranks may have "
                             "joined",
                             name, context_.rank, rank))
        .with_rank(rank)
        .with_tensor(name);
  }
  return {};
}

// Returns the error of what_never_meets() only if it persists for half a second. A rank's status
// may have changed since its last pong, and two more pongs arrive in that time.
std::optional<Error> Overseer::what_still_never_meets(const Pending& pending,
                                                      Clock::time_point now) {
  constexpr auto kGrace = std::chrono::milliseconds(500);
  auto error = find_deadlock(pending, now);
  if (!error) {
    never_meets_.clear();
    return {};
  }
  if (never_meets_ != error->what()) {
    never_meets_ = error->what();
    never_meets_since_ = now;
  }
  if (now - never_meets_since_ < kGrace) return {};
  return error;
}

// --- operations that take too long --------------------------------------------------------------

std::optional<Error> Overseer::what_is_overdue(const Pending& pending, Clock::time_point now) {
  if (options_.operation_timeout <= 0) return {};
  const auto limit = duration_of(options_.operation_timeout);
  std::optional<Error> overdue;
  // Returns true if the operation is overdue. `late` returns the ranks for which it waits.
  const auto look = [&](Clock::time_point since, const std::string& what, std::string_view name,
                        auto&& late) {
    if (now < since + limit) {
      next_ = std::min(next_, since + limit);
      return false;
    }
    const std::vector<int> ranks = late();
    const auto why = ranks.empty() ? std::string(" All ranks take part in it; its data is slow.")
                                   : fmt::format(" It waits for {}.{}", format_rank_set(ranks),
                                                 describe_late_ranks(ranks, pending, now));
    overdue = Error(ErrorCode::timeout,
                    fmt::format("{} took more than TUTTI_OPERATION_TIMEOUT={} s.{} Allow more, or "
                                "make a new Communicator by shrink()",
                                what, options_.operation_timeout, why))
                  .with_rank(ranks.empty() ? -1 : ranks.front())
                  .with_tensor(name);
    return true;
  };
  for (const auto& run : pending.scheduler.runs()) {
    const auto* first = run->entries().empty() ? nullptr : run->entries().front();
    if (look(run->started(), Scheduler::describe(*run), first ? first->request.name : "",
             [&] { return ranks_behind(*run); }))
      return overdue;
  }
  const auto& blocking = pending.blocking;
  if (blocking.is_waiting() &&
      look(blocking.since(), fmt::format("the blocking call \"{}\"", blocking.name()),
           blocking.name(), [&] { return pending.backend.missing(kBlockingQueue); }))
    return overdue;
  if (pending.coordinator == nullptr) return {};
  // Rank 0 checks for all ranks, because only rank 0 knows which ranks have requested a name.
  for (const auto& waiting : pending.coordinator->waiting())
    if (look(waiting.since, fmt::format("\"{}\"", waiting.name), waiting.name,
             [&] { return waiting.missing; }))
      return overdue;
  return {};
}

// --- reports ------------------------------------------------------------------------------------

void Overseer::report_stalls(const Pending& pending, Clock::time_point now) {
  // Names that do not wait any more are forgotten, even if this rank is never idle.
  const auto before = std::exchange(reported_, {});
  const auto consider = [&](const std::string& key, Clock::time_point since, auto&& line) {
    const double seconds = seconds_between(since, now);
    const auto known = before.find(key);
    auto& reported = reported_[key] = known == before.end() ? 0 : known->second;
    if (stall_clock_.due(seconds, reported)) {
      reported = seconds;
      outside_.log(LogLevel::warning, line());
    }
    const auto next = since + duration_of(stall_clock_.next(reported));
    next_ = std::min(next_, std::max(next, now + std::chrono::milliseconds(10)));
  };
  if (pending.coordinator != nullptr) {
    const auto waiting = pending.coordinator->waiting();
    std::vector<RankKnowledge> ranks;
    for (int rank = 0; rank < context_.size; ++rank)
      ranks.push_back(knowledge_of(rank, pending, now));
    for (const auto& name : waiting)
      consider(name.name, name.since, [&] { return stall_line(name, waiting, ranks, now); });
  }
  const auto& blocking = pending.blocking;
  if (blocking.is_waiting()) {
    consider(fmt::format("blocking {}", blocking.name()), blocking.since(), [&] {
      const auto missing = pending.backend.missing(kBlockingQueue);
      auto line = fmt::format("\"{}\", a blocking call, has waited {:.1f} s for {} on rank {}.{}",
                              blocking.name(), seconds_between(blocking.since(), now),
                              format_rank_set(missing), context_.rank,
                              describe_late_ranks(missing, pending, now));
      for (const int rank : missing) {
        const auto& status = statuses_[static_cast<size_t>(rank)];
        if (status && status->outstanding > 0 && status->last_submitted == blocking.name())
          line += fmt::format(
              " Rank {} submitted that name as an asynchronous one: the two never meet. Call it "
              "the same way on all ranks.",
              rank);
      }
      return line;
    });
  }
  for (const auto& run : pending.scheduler.runs()) {
    const auto name = Scheduler::describe(*run);
    consider("run " + name, run->started(), [&] {
      return fmt::format("{} has been in flight for {:.1f} s on rank {}.{}", name,
                         seconds_between(run->started(), now), context_.rank,
                         describe_late_ranks(ranks_behind(*run), pending, now));
    });
  }
}

}  // namespace tutti
