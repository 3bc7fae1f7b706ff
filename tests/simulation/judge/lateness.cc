// I1: the times by which calls must have ended.
#include <fmt/format.h>

#include <algorithm>

#include "tests/simulation/judge/departures.h"
#include "tutti/core/agreement/messages.h"

namespace tutti::simulation {

using Kind = Fault::Kind;

Micros longest_way(const Case& from) {
  // Waking up and taking turns costs a moment, and pollers count whole milliseconds.
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
    // A stream passes one buffer in the time that its bytes and the acknowledgement need. A
    // schedule's rounds send the elements, each with a header, to several ranks. A long message is
    // announced first.
    const int64_t by_buffer = from.world.buffer * kSecond / (2 * way);
    bandwidth = bandwidth == 0 ? by_buffer : std::min(bandwidth, by_buffer);
    copies = 2 * from.world.size;
    way *= 4;
  }
  if (bandwidth == 0) return way;
  int64_t bytes = 1 << 14;  // bytes of control messages
  for (const auto& scripts : from.ranks)
    for (const auto& script : scripts)
      for (const auto& action : script)
        for (const auto& operation : action.operations) bytes += copies * (operation.bytes() + 64);
  return way + bytes * kSecond / bandwidth;
}

namespace {

// Returns whether rank 0 asked for names that its cache had forgotten. Then requests are sent
// twice.
bool asks_again(const View& view) {
  return view.rank(0).messages[static_cast<size_t>(MessageType::resend)] > 0;
}

// How long I1 lets a call go on after each kind of cause.
struct Limits {
  explicit Limits(const View& view) : Limits(view.from, asks_again(view) ? 5 : 3) {}
  Limits(const Case& from, int ways)
      :  // The farewell and a request reach rank 0, and its answer comes back. A pair that a peer
         // leaves is requested once more.
        left(ways * longest_way(from) + (from.world.cannot_cancel ? kSecond / 4 : 0)),
        lost(left + kSecond * 3 / 10 + (from.world.fails_before_reason ? kSecond : 0)),
        silent(longest_way(from) + from.world.peer_timeout * 5 / 4),
        limit(from.world.operation_timeout == 0 ? 0 : from.world.operation_timeout + kSecond),
        // A plan that waits for a second is given up, and its operations are negotiated again. Some
        // backends end late if they cannot cancel.
        well(kSecond + 20 * longest_way(from) + (from.world.cannot_cancel ? kSecond / 2 : 0)) {}
  Micros sum() const { return left + lost + silent + limit + never_meets; }
  const Micros left, lost, silent, limit, well, never_meets = 2 * kSecond;
};

// Returns the time of the last event that an operation may have waited for.
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
  // A rank that is needed but did not submit the operation goes on until it closes or ends. So may
  // the last rank that joins.
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

// Returns the latest end that the cause of the error allows, if it is the only cause; kNever: any.
Micros sharp_end(const View& view, const OperationRecord& operation, const Limits& limits) {
  const auto& faults = view.from.faults;
  if (operation.error_rank < 0 || operation.error_rank >= view.from.world.size) return kNever;
  const RankRecord& named = view.rank(operation.error_rank);
  // A blocking sendrecv ends when both parts are over.
  const Action& action = view.oracle.action_of(operation);
  if (!view.oracle.is_join(operation) && action.kind == Action::Kind::block &&
      action.operations.size() > 1)
    return kNever;
  if (faults.empty() && has_code(operation.error_code, {ErrorCode::peer_left})) {
    const Operation* asked = view.oracle.operation_of(operation);
    if (asked != nullptr && asked->root == kAnyRank) return kNever;  // its sender is not known
    // A join goes on after a rank left that had joined, until a rank leaves that had not.
    Micros left = needed_left(view, operation, Doubt::is_not_needed);
    // A prepared pair goes on without rank 0, until one of its two ranks leaves.
    const bool is_pair = asked != nullptr && (asked->kind == CollectiveKind::send ||
                                              asked->kind == CollectiveKind::recv);
    if (is_pair && asked->root > 0 && left != kNever && view.rank(asked->root).farewell != kNever)
      left = std::max(left, view.rank(asked->root).farewell);
    return left == kNever ? kNever : std::max(operation.submitted, left) + limits.left;
  }
  // Calls that never match end with an error once all ranks wait.
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

}  // namespace

void calls_end(const View& view, Findings& findings) {
  const Limits limits(view);
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
    // A join waits as long as the other ranks go on.
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

}  // namespace tutti::simulation
