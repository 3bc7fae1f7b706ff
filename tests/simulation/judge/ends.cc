// When calls end (I1), and with which errors (I5).
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "tests/simulation/judge/invariants.h"
#include "tutti/base/error.h"

namespace tutti::simulation {

namespace {

using Kind = Fault::Kind;

std::string name_of_call(const OperationRecord& operation) {
  return fmt::format("rank {} {} (script {}, action {})", operation.site.rank, operation.name,
                     operation.site.script, operation.site.action);
}

bool has_code(int code, std::initializer_list<ErrorCode> codes) {
  return std::any_of(codes.begin(), codes.end(),
                     [&](ErrorCode one) { return static_cast<int>(one) == code; });
}

// Returns whether the last message of a rank that breaks may be lost: the buffer may be too small
// for it, or the process may end first.
bool may_not_leave(const World& world) {
  return world.over_streams && (world.buffer < 8192 || world.bandwidth > 0);
}

bool touches(const Fault& fault, int rank) { return fault.rank == rank || fault.peer == rank; }

// Whether a rank may be called dead: it died, or its link ended.
bool may_be_lost(const View& view, int rank, Micros by) {
  const RankRecord& state = view.rank(rank);
  if (state.killed != kNever && state.killed <= by) return true;
  // A rank that broke off because of a third one is gone; why may be stuck in a link, and where the
  // store does not answer nobody waits for it.
  const bool is_stuck =
      std::any_of(view.from.faults.begin(), view.from.faults.end(), [](const Fault& fault) {
        return fault.kind == Kind::clog || fault.kind == Kind::delay ||
               fault.kind == Kind::slow_link || fault.kind == Kind::half_open ||
               fault.kind == Kind::reset || fault.kind == Kind::store_gone ||
               fault.kind == Kind::stop || fault.kind == Kind::jump;
      });
  if ((is_stuck || may_not_leave(view.from.world)) && state.broken != kNever && state.broken <= by)
    return true;
  return std::any_of(view.from.faults.begin(), view.from.faults.end(), [&](const Fault& fault) {
    return (fault.kind == Kind::reset || fault.kind == Kind::half_open) && touches(fault, rank);
  });
}

// Whether a rank may be called silent: it or a link of it stood still for long enough.
bool may_be_silent(const View& view, int rank, Micros by) {
  const Micros limit = view.from.world.peer_timeout;
  for (const auto& [since, until] : view.rank(rank).stopped)
    if (until == kNever || until - since >= limit / 2) return true;
  // A rank that is broken answers nothing, until its program closes.
  const Micros broken = view.rank(rank).broken;
  if (may_not_leave(view.from.world) && broken != kNever && broken + limit / 2 <= by) return true;
  return std::any_of(view.from.faults.begin(), view.from.faults.end(), [&](const Fault& fault) {
    switch (fault.kind) {
      case Kind::stop:
      case Kind::jump:
        return fault.rank == rank && fault.length >= limit / 2;
      case Kind::half_open:
      case Kind::clog:
      case Kind::delay:
      case Kind::slow_link:
        return touches(fault, rank);
      case Kind::kill:  // the end of its link may come late
        return fault.rank == rank;
      default:
        return false;
    }
  });
}

// Returns whether `rank` left while its send to a receive from any rank was pending. The receive
// may have matched it, and then it needs that rank.
bool left_a_send(const View& view, int rank, const OperationRecord& receive) {
  return std::ranges::any_of(view.record.operations, [&](const OperationRecord& one) {
    const Operation* asked = view.oracle.operation_of(one);
    return one.site.rank == rank && one.name == receive.name && asked != nullptr &&
           asked->kind == CollectiveKind::send && asked->root == receive.site.rank &&
           one.error_code == static_cast<int>(ErrorCode::closed) && !one.is_refused;
  });
}

// When a rank left that an operation needs and that has not finished it; kNever: none did. A
// receive from any rank needs the last one that may send.
Micros needed_left(const View& view, const OperationRecord& operation) {
  const Meeting* meeting = view.oracle.meeting_of(operation);
  const Operation* asked = view.oracle.operation_of(operation);
  const bool is_pair = asked != nullptr &&
                       (asked->kind == CollectiveKind::send || asked->kind == CollectiveKind::recv);
  Micros first = kNever, last = 0;
  for (int rank = 0; rank < view.from.world.size; ++rank) {
    if (rank == operation.site.rank) continue;
    const Micros farewell = view.rank(rank).farewell;
    last = farewell == kNever || last == kNever ? kNever : std::max(last, farewell);
    if (farewell == kNever) continue;
    // Rank 0 matches the names of all.
    if (is_pair && rank != 0 && asked->root != rank) continue;
    if (meeting != nullptr && meeting->voices.contains(rank)) {
      const auto& theirs = *meeting->voices.at(rank).record;
      if (theirs.error_code == 0 && theirs.ended != kNever && theirs.ended <= farewell) continue;
    }
    if (first == kNever || farewell < first) first = farewell;
  }
  if (is_pair && asked->root == kAnyRank && last != kNever)
    first = first == kNever ? last : std::min(first, last);
  return first;
}

}  // namespace

Micros longest_way(const Case& from) {
  // To be woken and to take turns costs a moment, and pollers count milliseconds.
  constexpr Micros kTurns = kSecond / 500;
  Micros way = from.world.latency + kTurns;
  int64_t bandwidth = from.world.bandwidth;
  for (const auto& fault : from.faults) {
    if (fault.kind == Kind::delay) way += fault.amount;
    if (fault.kind == Kind::slow_link && fault.amount > 0 &&
        (bandwidth == 0 || fault.amount < bandwidth))
      bandwidth = fault.amount;
  }
  int64_t copies = 1;
  if (from.world.over_streams) {
    // A buffer passes its bytes once in the time that they and the answer to them take. The rounds
    // of a schedule bring the elements, with a frame around them, to several ranks; a long message
    // is announced first.
    const int64_t by_buffer = from.world.buffer * kSecond / (2 * way);
    bandwidth = bandwidth == 0 ? by_buffer : std::min(bandwidth, by_buffer);
    copies = 2 * from.world.size;
    way *= 4;
  }
  if (bandwidth == 0) return way;
  int64_t bytes = 1 << 14;  // control messages
  for (const auto& scripts : from.ranks)
    for (const auto& script : scripts)
      for (const auto& action : script)
        for (const auto& operation : action.operations) bytes += copies * (operation.bytes() + 64);
  return way + bytes * kSecond / bandwidth;
}

namespace {

// The limits of I1, after each kind of cause.
struct Limits {
  explicit Limits(const Case& from)
      :  // The farewell and a request reach rank 0, then its answer comes; a pair that a peer
         // leaves is asked for once more.
        left(3 * longest_way(from) + (from.world.cannot_cancel ? kSecond / 4 : 0)),
        lost(left + kSecond * 3 / 10 + (from.world.fails_before_reason ? kSecond : 0)),
        silent(longest_way(from) + from.world.peer_timeout * 5 / 4),
        limit(from.world.operation_timeout == 0 ? 0 : from.world.operation_timeout + kSecond),
        // A plan is given up that waits for a second, and its operations are asked for anew.
        // Some backends end late what they cannot cancel.
        well(kSecond + 20 * longest_way(from) + (from.world.cannot_cancel ? kSecond / 2 : 0)) {}
  Micros sum() const { return left + lost + silent + limit + never_meets; }
  const Micros left, lost, silent, limit, well, never_meets = 2 * kSecond;
};

// When the last thing happened that an operation may have waited for.
Micros last_cause(const View& view, const OperationRecord& operation) {
  Micros last = operation.submitted;
  if (!view.from.faults.empty()) last = std::max(last, view.from.world.heals_at);
  const Meeting* meeting = view.oracle.meeting_of(operation);
  if (meeting != nullptr)
    for (const auto& [rank, voice] : meeting->voices)
      last = std::max(last, voice.record->submitted);
  if (view.record.damaged != kNever) last = std::max(last, view.record.damaged);
  if (meeting != nullptr && !meeting->joined.empty())
    for (const auto& one : view.record.operations)
      if (view.oracle.is_join(one) && one.submitted <= operation.ended)
        last = std::max(last, one.submitted);
  // A rank that was needed, but did not ask for it, goes on until it closes or ends; so may one
  // that joins last.
  const bool waits_for_ends = view.record.damaged != kNever || meeting == nullptr ||
                              !meeting->is_complete() ||
                              !meeting->voices.begin()->second.group.empty();
  for (const auto& state : view.record.ranks) {
    if (waits_for_ends) last = std::max({last, state.closing, state.killed, state.broken});
    for (const auto& [since, until] : state.stopped)
      if (since <= last) last = std::max({last, since, until});
  }
  return last;
}

// Whether a rank waits by name for what others call blocking.
bool mixes_calls(const Case& from) {
  std::set<std::string> called, submitted;
  for (const auto& scripts : from.ranks)
    for (const auto& script : scripts)
      for (const auto& action : script)
        for (const auto& operation : action.operations)
          (action.kind == Action::Kind::block ? called : submitted).insert(operation.name);
  return std::ranges::any_of(called, [&](const auto& name) { return submitted.contains(name); });
}

// The end that the cause of the error alone allows, where there is no other; kNever: any.
Micros sharp_end(const View& view, const OperationRecord& operation, const Limits& limits) {
  const auto& faults = view.from.faults;
  if (operation.error_rank < 0 || operation.error_rank >= view.from.world.size) return kNever;
  const RankRecord& named = view.rank(operation.error_rank);
  // A call that sends and receives ends when both halves are over.
  const Action& action = view.oracle.action_of(operation);
  if (!view.oracle.is_join(operation) && action.kind == Action::Kind::block &&
      action.operations.size() > 1)
    return kNever;
  if (faults.empty() && has_code(operation.error_code, {ErrorCode::peer_left})) {
    const Operation* asked = view.oracle.operation_of(operation);
    if (asked != nullptr && asked->root == kAnyRank) return kNever;  // what it took is not known
    Micros left = needed_left(view, operation);
    // A pair that two ranks have prepared goes on without rank 0, until one of the two leaves.
    const bool is_pair = asked != nullptr && (asked->kind == CollectiveKind::send ||
                                              asked->kind == CollectiveKind::recv);
    if (is_pair && asked->root > 0 && left != kNever && view.rank(asked->root).farewell != kNever)
      left = std::max(left, view.rank(asked->root).farewell);
    return left == kNever ? kNever : std::max(operation.submitted, left) + limits.left;
  }
  // What never meets is told once all ranks wait.
  if (faults.empty() && has_code(operation.error_code, {ErrorCode::mismatch}) &&
      view.from.world.serves_blocking && mixes_calls(view.from)) {
    const Meeting* meeting = view.oracle.meeting_of(operation);
    if (meeting == nullptr || meeting->is_complete()) return kNever;
    Micros last = 0;
    for (const auto& one : view.record.operations)
      if (one.submitted < operation.ended) last = std::max(last, one.submitted);
    return last + limits.never_meets + kSecond + longest_way(view.from);
  }
  if (faults.size() == 1 && faults[0].kind == Kind::kill && named.killed != kNever &&
      has_code(operation.error_code, {ErrorCode::peer_lost}))
    return std::max(operation.submitted, named.killed) + limits.lost;
  if (faults.size() == 1 && faults[0].kind == Kind::stop && named.stopped.size() == 1 &&
      operation.site.rank != operation.error_rank &&
      has_code(operation.error_code, {ErrorCode::peer_silent}))
    return std::max(operation.submitted, named.stopped[0].first) + limits.silent;
  return kNever;
}

// Whether something was pending for as long as TUTTI_OPERATION_TIMEOUT by then.
bool was_pending_too_long(const View& view, Micros by) {
  const Micros limit = view.from.world.operation_timeout;
  if (limit == 0) return false;
  return std::any_of(view.record.operations.begin(), view.record.operations.end(),
                     [&](const OperationRecord& one) {
                       const Micros due = one.submitted + limit;
                       return !one.is_refused && due <= by &&
                              (one.ended == kNever || one.ended >= due);
                     });
}

// Operations that are submitted at once are taken or refused at once.
bool is_pending_twice(const View& view, const OperationRecord& operation) {
  const auto& together = view.oracle.action_of(operation).operations;
  return std::any_of(
      view.record.operations.begin(), view.record.operations.end(),
      [&](const OperationRecord& one) {
        return &one != &operation && !one.is_refused && one.site.rank == operation.site.rank &&
               std::ranges::any_of(together,
                                   [&](const Operation& part) { return part.name == one.name; }) &&
               one.submitted <= operation.submitted &&
               (one.ended == kNever || one.ended >= operation.submitted);
      });
}

// Whether a rank has joined without the others while the operation was pending, as far as rank 0
// had heard.
bool had_joined(const View& view, const OperationRecord& operation) {
  const Micros late = view.from.faults.empty() ? 3 * longest_way(view.from) : kSecond * 3600;
  return std::ranges::any_of(view.record.operations, [&](const OperationRecord& one) {
    return view.oracle.is_join(one) && one.site.rank == operation.error_rank &&
           one.submitted <= operation.ended &&
           (one.ended == kNever || one.ended + late >= operation.submitted);
  });
}

// Whether a receive from any rank may have met this send, which does not fit, and failed before it
// heard of it.
bool may_have_met_another(const View& view, const Meeting& meeting, const OperationRecord& send) {
  const Operation& sent = *view.oracle.operation_of(send);
  return std::ranges::any_of(view.record.operations, [&](const OperationRecord& one) {
    const Operation* asked = view.oracle.operation_of(one);
    return one.site.rank == meeting.to && one.name == send.name && !one.is_refused &&
           one.source < 0 && asked != nullptr && asked->root == kAnyRank &&
           (asked->dtype != sent.dtype || asked->count() != sent.count());
  });
}

std::string why_not_mismatch(const View& view, const OperationRecord& operation) {
  // A call that never meets ends the communicator, so any rank may report a mismatch.
  if (view.from.world.serves_blocking && mixes_calls(view.from)) return "";
  const Meeting* meeting = view.oracle.meeting_of(operation);
  if (met_a_joined_rank(operation) && !had_joined(view, operation))
    return "that rank had not joined";
  if (meeting == nullptr) return "it met nobody";
  if (!view.oracle.disagreement(*meeting).empty()) return "";
  if (meeting->is_pair && !meeting->is_complete() && meeting->from == operation.site.rank &&
      may_have_met_another(view, *meeting, operation))
    return "";
  const bool may_never_meet = view.from.world.serves_blocking && !meeting->is_complete() &&
                              view.oracle.action_of(operation).kind == Action::Kind::block;
  return may_never_meet ? "" : "the ranks agree";
}

// Whether a rank left by then that a part of the call needs. A blocking call that sends and
// receives has one error, of either.
bool has_needed_left(const View& view, const OperationRecord& operation) {
  return std::ranges::any_of(view.record.operations, [&](const OperationRecord& one) {
    const bool is_of_call = one.site.rank == operation.site.rank &&
                            one.site.script == operation.site.script &&
                            one.site.action == operation.site.action;
    if (!is_of_call) return false;
    const Operation* asked = view.oracle.operation_of(one);
    if (asked != nullptr && asked->root == kAnyRank && left_a_send(view, operation.error_rank, one))
      return true;
    const Micros left = needed_left(view, one);
    return left != kNever && left <= operation.ended;
  });
}

std::string why_not_left(const View& view, const OperationRecord& operation) {
  const int named = operation.error_rank;
  if (named < 0 || named >= view.from.world.size) return "it names no rank";
  if (named == operation.site.rank) return "it names itself";
  const RankRecord& leaver = view.rank(named);
  if (leaver.closing == kNever || leaver.closing > operation.ended)
    return "that rank had not closed";
  const Meeting* meeting = view.oracle.meeting_of(operation);
  // If a rank is lost after another one left, a rank that needs neither blames the one that left.
  const RankRecord& own = view.rank(operation.site.rank);
  if (own.broken != kNever && own.error_rank == named) return "";
  if (!has_needed_left(view, operation)) return "no rank that it needs had left";
  // A receive from any rank names the first of those that left, and so does what was sent for it.
  for (const auto& one : view.record.operations) {
    if (one.name != operation.name || view.oracle.is_join(one)) continue;
    if (view.oracle.operation_of(one)->root == kAnyRank) return "";
  }
  // A needed rank that left because another one did names that one. A blocking call that sends and
  // receives has one error, of either.
  const Action& action = view.oracle.action_of(operation);
  for (const auto& part : action.operations) {
    const bool is_pair = part.kind == CollectiveKind::send || part.kind == CollectiveKind::recv;
    if (!is_pair || part.root < 0 || part.root >= view.from.world.size) continue;
    for (const int needed : {0, part.root}) {
      const Micros closing = view.rank(needed).closing;
      if (closing != kNever && closing <= operation.ended && leaver.closing <= closing) return "";
    }
  }
  // Rank 0 matches names, so all need it.
  if (meeting != nullptr && meeting->is_pair && named != 0 && named != meeting->from &&
      named != meeting->to)
    return "it does not need that rank";
  return "";
}

// What the program of a rank closes with; empty: it closes of its own accord.
std::string closing_text(const Case& from, int rank) {
  for (const auto& script : from.ranks.at(static_cast<size_t>(rank)))
    for (const auto& action : script)
      if (action.kind == Action::Kind::close) return action.text;
  return "";
}

// Whoever tells of a rank that left passes on that rank's error, not its own.
std::string why_not_its_text(const View& view, const OperationRecord& operation) {
  const std::string said = closing_text(view.from, operation.error_rank);
  const bool tells_one = operation.error_text.find("because of an error (") != std::string::npos;
  if (said.empty()) return tells_one ? "that rank closed without an error" : "";
  // A link that ends may take the farewell along.
  if (!tells_one && (view.has_fault(Kind::half_open) || view.has_fault(Kind::reset))) return "";
  const bool is_told =
      operation.error_text.find("because of an error (" + said + ")") != std::string::npos;
  return is_told ? "" : fmt::format("that rank closed because of \"{}\"", said);
}

}  // namespace

std::string why_not(const View& view, const OperationRecord& operation) {
  const Case& from = view.from;
  const int code = operation.error_code, self = operation.site.rank, named = operation.error_rank;
  const auto has = [&](Kind kind) { return view.has_fault(kind); };
  if (view.is_damaged(operation.ended)) return "";
  const bool is_named = named >= 0 && named < from.world.size;
  switch (static_cast<ErrorCode>(code)) {
    case ErrorCode::mismatch:
      return why_not_mismatch(view, operation);
    case ErrorCode::duplicate_name:
      if (!operation.is_refused) return "it was taken";
      return is_pending_twice(view, operation) ? "" : "the name was not pending";
    case ErrorCode::timeout:
      return was_pending_too_long(view, operation.ended) ? "" : "nothing was pending for so long";
    case ErrorCode::peer_lost:
      if (!is_named) return "it names no rank";
      if (!may_be_lost(view, named, operation.ended)) return "that rank lives, and its links do";
      // A rank waits for the record of a death before it reports one.
      if (from.faults.size() == 1 && has(Kind::kill) && view.rank(named).killed != kNever &&
          from.world.has_launcher &&
          operation.error_text.find("killed by signal") == std::string::npos)
        return "the record says how it died";
      return named == self && !may_be_silent(view, named, operation.ended) && !has(Kind::reset)
                 ? "it names itself"
                 : "";
    case ErrorCode::peer_silent:
      if (!is_named) return "it names no rank";
      return may_be_silent(view, named, operation.ended) ? "" : "that rank answers";
    case ErrorCode::peer_left: {
      const auto why = why_not_left(view, operation);
      return why.empty() ? why_not_its_text(view, operation) : why;
    }
    case ErrorCode::closed: {
      const Micros closing = view.rank(self).closing;
      return closing != kNever && closing <= operation.ended ? "" : "its program had not closed";
    }
    case ErrorCode::out_of_memory:
      return has(Kind::throws_in_start) || has(Kind::operation_fails) ? "" : "there was memory";
    case ErrorCode::invalid_argument:
      for (const auto& script : from.ranks.at(static_cast<size_t>(self)))
        for (const auto& action : script)
          if (action.kind == Action::Kind::retire) return "";
      return "it gave no memory back";
    case ErrorCode::io:
    case ErrorCode::unavailable:
      return has(Kind::operation_fails) ? "" : "no operation failed by itself";
    case ErrorCode::internal:
      // The reason is waited for, but not for ever.
      if (from.world.fails_before_reason &&
          (has(Kind::clog) || has(Kind::half_open) || has(Kind::delay) || has(Kind::slow_link)))
        return "";
      return has(Kind::throws_in_start) || has(Kind::throws_in_observer) ||
                     has(Kind::operation_fails)
                 ? ""
                 : "nothing was thrown";
    case ErrorCode::callback:
      return has(Kind::throws_in_observer) ? "" : "nothing was thrown";
    default:
      return "that error is of nothing that happened";
  }
}

void calls_end(const View& view, Findings& findings) {
  const Limits limits(view.from);
  for (const auto& operation : view.record.operations) {
    if (view.rank(operation.site.rank).killed != kNever || operation.is_refused) continue;
    view.looks(1);
    if (operation.ended == kNever && view.may_wait_for_ever()) continue;
    if (operation.ended == kNever) {
      findings.push_back({1, name_of_call(operation) + " never ended"});
      continue;
    }
    const Meeting* meeting = view.oracle.meeting_of(operation);
    const Action& action = view.oracle.action_of(operation);
    const bool is_both = action.kind == Action::Kind::block && action.operations.size() > 1;
    const bool is_healthy = view.from.faults.empty() && meeting != nullptr &&
                            meeting->is_complete() && !is_both &&
                            meeting->voices.begin()->second.group.empty();
    Micros due = last_cause(view, operation) + (is_healthy ? limits.well : 2 * limits.sum());
    // A join waits for others as long as these go on.
    if (view.oracle.is_join(operation)) due = operation.ended;
    if (operation.error_code != 0)
      if (const Micros sharp = sharp_end(view, operation, limits); sharp != kNever)
        due = std::min(due, sharp);
    if (operation.ended > due)
      findings.push_back(
          {1, fmt::format("{} ended at {} with code {}, {} us too late", name_of_call(operation),
                          operation.ended, operation.error_code, operation.ended - due)});
  }
  for (size_t rank = 0; rank < view.record.ranks.size(); ++rank) {
    const RankRecord& state = view.record.ranks[rank];
    if (state.killed == kNever && state.over == kNever && !view.may_wait_for_ever())
      findings.push_back({1, fmt::format("rank {} is not over at the end", rank)});
  }
}

void errors_have_one_cause(const View& view, Findings& findings) {
  for (const auto& operation : view.record.operations) {
    if (operation.error_code == 0 || view.rank(operation.site.rank).killed != kNever) continue;
    view.looks(5);
    if (const auto why = why_not(view, operation); !why.empty())
      findings.push_back({5, fmt::format("{} failed with code {} about rank {}, but {}: {}",
                                         name_of_call(operation), operation.error_code,
                                         operation.error_rank, why, operation.error_text)});
  }
  const int mismatch = static_cast<int>(ErrorCode::mismatch);
  for (const auto& meeting : view.oracle.meetings()) {
    const OperationRecord* first = nullptr;
    for (const auto& [rank, voice] : meeting.voices) {
      if (voice.record->error_code != mismatch || view.rank(rank).killed != kNever) continue;
      if (view.is_damaged(voice.record->ended)) continue;
      if (first == nullptr) first = voice.record;
      if (voice.record->error_text != first->error_text)
        findings.push_back(
            {5, fmt::format("{} says \"{}\", but rank {} says \"{}\"", name_of_call(*voice.record),
                            voice.record->error_text, first->site.rank, first->error_text)});
    }
  }
  // One loss has one victim, whom all survivors name.
  if (view.from.faults.size() != 1 || view.record.damaged != kNever) return;
  int named = -1;
  for (size_t rank = 0; rank < view.record.ranks.size(); ++rank) {
    const RankRecord& state = view.record.ranks[rank];
    if (state.killed != kNever ||
        !has_code(state.error_code, {ErrorCode::peer_lost, ErrorCode::peer_silent}))
      continue;
    const Kind kind = view.from.faults[0].kind;
    const bool has_two_ends = (kind != Kind::kill && kind != Kind::stop && kind != Kind::jump) ||
                              may_not_leave(view.from.world);
    if (named >= 0 && state.error_rank != named && !has_two_ends)
      findings.push_back(
          {5, fmt::format("rank {} is broken because of rank {}, another one because "
                          "of rank {}",
                          rank, state.error_rank, named)});
    named = state.error_rank;
  }
}

}  // namespace tutti::simulation
