#include "tests/simulation/judge/departures.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace tutti::simulation {

std::string name_of_call(const OperationRecord& operation) {
  return fmt::format("rank {} {} (script {}, action {})", operation.site.rank, operation.name,
                     operation.site.script, operation.site.action);
}

bool has_code(int code, std::initializer_list<ErrorCode> codes) {
  return std::any_of(codes.begin(), codes.end(),
                     [&](ErrorCode one) { return static_cast<int>(one) == code; });
}

namespace {

bool is_closed_over(const OperationRecord& operation) {
  return !operation.is_refused && has_code(operation.error_code, {ErrorCode::closed});
}

// Returns how many joins of a leaving rank its peers count. A join that was pending when the rank
// closed counts if rank 0 had received its request. Rank 0 receives it before the farewell, unless
// something else of that rank was pending too; then it is in doubt. A fault may lose the farewell.
int joins_of_leaver(const View& view, int rank, Doubt doubt) {
  const auto& all = view.record.operations;
  const bool is_in_doubt =
      !view.from.faults.empty() || std::ranges::any_of(all, [&](const OperationRecord& one) {
        return one.site.rank == rank && !view.oracle.is_join(one) && is_closed_over(one);
      });
  const bool counts_closed = !is_in_doubt || doubt == Doubt::is_not_needed;
  return static_cast<int>(std::ranges::count_if(all, [&](const OperationRecord& one) {
    const bool is_joined = one.error_code == 0 && one.ended != kNever;
    return one.site.rank == rank && view.oracle.is_join(one) &&
           (is_joined || (counts_closed && is_closed_over(one)));
  }));
}

// Returns which join of its rank this one is, counted from 1 without the failed ones.
int number_of_join(const View& view, const OperationRecord& join) {
  return 1 + static_cast<int>(
                 std::ranges::count_if(view.record.operations, [&](const OperationRecord& one) {
                   return one.site.rank == join.site.rank && view.oracle.is_join(one) &&
                          one.error_code == 0 && one.ended != kNever && one.ended <= join.submitted;
                 }));
}

}  // namespace

Micros needed_left(const View& view, const OperationRecord& operation, Doubt doubt) {
  const Meeting* meeting = view.oracle.meeting_of(operation);
  const Operation* asked = view.oracle.operation_of(operation);
  const bool is_pair = asked != nullptr &&
                       (asked->kind == CollectiveKind::send || asked->kind == CollectiveKind::recv);
  const int join = view.oracle.is_join(operation) ? number_of_join(view, operation) : 0;
  Micros first = kNever, last = 0;
  for (int rank = 0; rank < view.from.world.size; ++rank) {
    if (rank == operation.site.rank) continue;
    const Micros farewell = view.rank(rank).farewell;
    last = farewell == kNever || last == kNever ? kNever : std::max(last, farewell);
    if (farewell == kNever) continue;
    // Rank 0 matches all names.
    if (is_pair && rank != 0 && asked->root != rank) continue;
    // Rank 0 also announces when all ranks have joined.
    if (join > 0 && rank != 0 && joins_of_leaver(view, rank, doubt) >= join) continue;
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

bool mixes_calls(const Case& from) {
  std::set<std::string> called, submitted;
  for (const auto& scripts : from.ranks)
    for (const auto& script : scripts)
      for (const auto& action : script)
        for (const auto& operation : action.operations)
          (action.kind == Action::Kind::block ? called : submitted).insert(operation.name);
  return std::ranges::any_of(called, [&](const auto& name) { return submitted.contains(name); });
}

}  // namespace tutti::simulation
