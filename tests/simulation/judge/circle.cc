#include <algorithm>

#include "tests/simulation/judge/invariants.h"

namespace tutti::simulation {

namespace {

// Returns whether an operation can never end, because a rank did not submit it or gave it up.
bool is_missed(const View& view, const Meeting* meeting) {
  if (meeting == nullptr || !meeting->is_complete()) return true;
  const auto failed = [](const auto& one) { return one.second.record->error_code != 0; };
  // A rank whose join failed counts as missing.
  const auto is_failed_join = [&](const OperationRecord& one) {
    return view.oracle.is_join(one) && one.error_code != 0 &&
           std::ranges::find(meeting->joined, one.site.rank) != meeting->joined.end();
  };
  return std::ranges::any_of(meeting->voices, failed) ||
         std::ranges::any_of(view.record.operations, is_failed_join);
}

bool has_missed_part(const View& view, const Site& site) {
  return std::ranges::any_of(view.record.operations, [&](const OperationRecord& one) {
    const bool is_of_action = one.site.rank == site.rank && one.site.script == site.script &&
                              one.site.action == site.action;
    return is_of_action && !one.is_refused && is_missed(view, view.oracle.meeting_of(one));
  });
}

}  // namespace

bool waits_in_a_circle(const View& view) {
  if (view.from.world.operation_timeout > 0) return false;
  std::vector<bool> is_stuck(view.record.ranks.size(), false);
  bool any = false;
  for (const auto& operation : view.record.operations) {
    if (operation.is_refused || operation.ended != kNever) continue;
    if (view.rank(operation.site.rank).killed != kNever) continue;
    const Meeting* meeting = view.oracle.meeting_of(operation);
    const Action& action = view.oracle.action_of(operation);
    const bool is_both = action.kind == Action::Kind::block && action.operations.size() > 1;
    // The parts of one action wait for each other, on every rank that takes part in them.
    const bool may_wait =
        is_missed(view, meeting) || std::ranges::any_of(meeting->voices, [&](const auto& one) {
          return has_missed_part(view, one.second.record->site);
        });
    if (!may_wait) return false;
    // A rank that gave the operation up and left does not keep the others waiting, except in a
    // sendrecv, whose other part may still wait.
    if (!is_both && meeting != nullptr &&
        std::ranges::any_of(meeting->voices, [&](const auto& one) {
          return one.second.record->error_code != 0 && view.rank(one.first).farewell != kNever;
        }))
      return false;
    // A rank that has left does not keep the others waiting.
    const auto has_left = [&](int rank) { return view.rank(rank).closing != kNever; };
    if (!is_both && meeting != nullptr && std::ranges::any_of(meeting->absent, has_left))
      return false;
    if (view.oracle.is_join(operation))
      for (int rank = 0; rank < view.from.world.size; ++rank)
        if (has_left(rank)) return false;
    is_stuck[static_cast<size_t>(operation.site.rank)] = any = true;
  }
  for (size_t rank = 0; rank < is_stuck.size(); ++rank) {
    const RankRecord& state = view.record.ranks[rank];
    const bool is_lost = state.killed != kNever && state.farewell == kNever;
    if (is_lost || state.broken != kNever) return false;
    if (!is_stuck[rank] && state.over == kNever && state.killed == kNever) return false;
  }
  return any;
}

}  // namespace tutti::simulation
