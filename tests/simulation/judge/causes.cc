// I5: the errors with which calls may end.
#include <fmt/format.h>

#include <algorithm>

#include "tests/simulation/judge/departures.h"

namespace tutti::simulation {

namespace {

using Kind = Fault::Kind;

// Returns whether the last message of a breaking rank may be lost. The buffer may be too small for
// it, or the process may end first.
bool may_not_leave(const World& world) {
  return world.over_streams && (world.buffer <= 8192 || world.bandwidth > 0);
}

bool touches(const Fault& fault, int rank) { return fault.rank == rank || fault.peer == rank; }

// Returns whether a rank may be called lost: it died, or its link ended.
bool may_be_lost(const View& view, int rank, Micros by) {
  const RankRecord& state = view.rank(rank);
  if (state.killed != kNever && state.killed <= by) return true;
  // A rank that broke off because of a third one is gone. Its reason may be stuck in a link, and
  // without an answer of the store nobody waits for it.
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

// Returns whether a rank may be called silent: the rank or one of its links hung for long enough.
bool may_be_silent(const View& view, int rank, Micros by) {
  const Micros limit = view.from.world.peer_timeout;
  for (const auto& [since, until] : view.rank(rank).stopped)
    if (until == kNever || until - since >= limit / 2) return true;
  // A broken rank does not answer until its program closes.
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
      case Kind::kill:  // the end of its link may be seen late
        return fault.rank == rank;
      default:
        return false;
    }
  });
}

// Returns whether an operation had been pending for TUTTI_OPERATION_TIMEOUT at the time `by`.
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

// Returns whether a name of the call was pending already. Operations that are submitted together
// are accepted or refused together.
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

// Returns whether rank 0 may have seen the rank that the error names as joined while the operation
// was pending.
bool had_joined(const View& view, const OperationRecord& operation) {
  const Micros late = view.from.faults.empty() ? 3 * longest_way(view.from) : kSecond * 3600;
  return std::ranges::any_of(view.record.operations, [&](const OperationRecord& one) {
    return view.oracle.is_join(one) && one.site.rank == operation.error_rank &&
           one.submitted <= operation.ended &&
           (one.ended == kNever || one.ended + late >= operation.submitted);
  });
}

// Returns whether this send may have met a mismatching receive from any rank. That receive may have
// failed before its rank learned of the send.
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
  // Calls that never match end the communicator, so any rank may report a mismatch.
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

// Returns whether `rank` left while its send to this receive from any rank was pending. The two may
// have matched already, and then the receive needs that rank.
bool left_a_send(const View& view, int rank, const OperationRecord& receive) {
  return std::ranges::any_of(view.record.operations, [&](const OperationRecord& one) {
    const Operation* asked = view.oracle.operation_of(one);
    return one.site.rank == rank && one.name == receive.name && asked != nullptr &&
           asked->kind == CollectiveKind::send && asked->root == receive.site.rank &&
           one.error_code == static_cast<int>(ErrorCode::closed) && !one.is_refused;
  });
}

// Returns whether a rank that a part of the call needs had left by then. A blocking sendrecv has
// one error for both parts.
bool has_needed_left(const View& view, const OperationRecord& operation) {
  return std::ranges::any_of(view.record.operations, [&](const OperationRecord& one) {
    const bool is_of_call = one.site.rank == operation.site.rank &&
                            one.site.script == operation.site.script &&
                            one.site.action == operation.site.action;
    if (!is_of_call) return false;
    const Operation* asked = view.oracle.operation_of(one);
    if (asked != nullptr && asked->root == kAnyRank && left_a_send(view, operation.error_rank, one))
      return true;
    const Micros left = needed_left(view, one, Doubt::is_needed);
    return left != kNever && left <= operation.ended;
  });
}

// Returns whether a blocking call may have failed without a reason from its backend. It failed by
// itself, or a rank that had left was killed before all its data had arrived. The call then names
// the first rank whose farewell it received.
bool may_lack_a_reason(const View& view, const OperationRecord& operation) {
  if (view.oracle.action_of(operation).kind != Action::Kind::block) return false;
  return std::ranges::any_of(view.from.faults, [&](const Fault& fault) {
    if (fault.kind == Kind::operation_fails)
      return fault.rank == operation.site.rank &&
             view.record.faults.test(static_cast<size_t>(Kind::operation_fails));
    if (fault.kind != Kind::kill) return false;
    const RankRecord& killed = view.rank(fault.rank);
    return killed.killed != kNever && killed.killed <= operation.ended &&
           killed.closing != kNever && killed.closing <= killed.killed;
  });
}

// Returns whether a part of a blocking call goes between two ranks of which one has no memory for
// pairs.
bool lacks_memory(const View& view, const OperationRecord& operation) {
  const int poor = view.from.world.lacks_memory;
  const Action& action = view.oracle.action_of(operation);
  if (!view.from.world.over_memory || poor == 0 || action.kind != Action::Kind::block) return false;
  return std::ranges::any_of(action.operations, [&](const Operation& part) {
    const bool is_pair = part.kind == CollectiveKind::send || part.kind == CollectiveKind::recv;
    return is_pair && (operation.site.rank == poor || part.root == poor);
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
  if (may_lack_a_reason(view, operation)) return "";
  if (!has_needed_left(view, operation)) return "no rank that it needs had left";
  // A receive from any rank names the first rank that left, and so does a send that it may take.
  for (const auto& one : view.record.operations) {
    if (one.name != operation.name || view.oracle.is_join(one)) continue;
    if (view.oracle.operation_of(one)->root == kAnyRank) return "";
  }
  // If a needed rank left because of another one, the error names that other rank. A blocking
  // sendrecv has one error for both parts.
  const Action& action = view.oracle.action_of(operation);
  for (const auto& part : action.operations) {
    const bool is_pair = part.kind == CollectiveKind::send || part.kind == CollectiveKind::recv;
    if (!is_pair || part.root < 0 || part.root >= view.from.world.size) continue;
    for (const int needed : {0, part.root}) {
      const Micros closing = view.rank(needed).closing;
      if (closing != kNever && closing <= operation.ended && leaver.closing <= closing) return "";
    }
  }
  // Rank 0 matches names, so all operations need it.
  if (meeting != nullptr && meeting->is_pair && named != 0 && named != meeting->from &&
      named != meeting->to)
    return "it does not need that rank";
  return "";
}

// The error about a rank that left must contain that rank's own error text.
std::string why_not_its_text(const View& view, const OperationRecord& operation) {
  const std::string& said = view.rank(operation.error_rank).closing_error;
  const bool tells_one = operation.error_text.find("because of an error (") != std::string::npos;
  if (said.empty()) return tells_one ? "that rank closed without an error" : "";
  // The farewell may be lost with a link that ends.
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
      // A rank waits for the record of a death before it reports the death.
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
      return has(Kind::throws_in_start) || has(Kind::operation_fails) ||
                     lacks_memory(view, operation)
                 ? ""
                 : "there was memory";
    case ErrorCode::invalid_argument:
      for (const auto& script : from.ranks.at(static_cast<size_t>(self)))
        for (const auto& action : script)
          if (action.kind == Action::Kind::retire) return "";
      return "it gave no memory back";
    case ErrorCode::io:
    case ErrorCode::unavailable:
      return has(Kind::operation_fails) ? "" : "no operation failed by itself";
    case ErrorCode::internal:
      // A rank waits for the reason only for a limited time.
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
  // After one loss, all survivors must name the same rank.
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
