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
