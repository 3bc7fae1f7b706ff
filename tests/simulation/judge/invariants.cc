#include "tests/simulation/judge/invariants.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <utility>

#include "tests/simulation/judge/departures.h"
#include "tutti/base/error.h"
#include "tutti/core/agreement/messages.h"

namespace tutti::simulation {

namespace {

void add(Findings& findings, int invariant, std::string text) {
  findings.push_back({invariant, std::move(text)});
}

std::string called(const OperationRecord& operation) {
  return fmt::format("rank {} {} (script {}, action {}), submitted at {}", operation.site.rank,
                     operation.name, operation.site.script, operation.site.action,
                     operation.submitted);
}

bool is_killed(const View& view, const OperationRecord& operation) {
  return view.rank(operation.site.rank).killed != kNever;
}

bool ended_well(const OperationRecord& operation) {
  return !operation.is_refused && operation.ended != kNever && operation.error_code == 0;
}

// The edges of the drawing at tutti::Phase, by number.
constexpr std::array<std::pair<int, int>, 12> kEdges = {{{0, 1},
                                                         {0, 6},
                                                         {1, 2},
                                                         {1, 3},
                                                         {1, 4},
                                                         {1, 5},
                                                         {2, 3},
                                                         {2, 4},
                                                         {2, 5},
                                                         {3, 5},
                                                         {4, 5},
                                                         {5, 6}}};
constexpr std::pair<int, int> kClosedWell = {4, 6};
// Returns how many steps in a row a rank may take without cause before it counts as busy. Over
// streams each step may move only a few of the bytes that are there.
uint64_t most_in_vain(const Case& from) { return from.world.over_streams ? 2000 : 200; }

// Returns whether all ranks do the same in every step, so that plans lock and no rank waits for a
// late one.
bool is_steady(const Case& from) {
  if (!from.faults.empty() || from.world.size < 2) return false;
  const auto& scripts = from.ranks.front();
  for (const auto& other : from.ranks)
    if (other != scripts || other.size() != 1) return false;
  std::vector<Action> first, step;  // the submits before a wait
  const auto ends = [&] {
    if (first.empty()) first = step;
    const bool is_like_the_first = step == first;
    step.clear();
    return is_like_the_first && !first.empty();
  };
  for (auto action : scripts.front()) {
    if (action.kind != Action::Kind::wait && action.kind != Action::Kind::submit) return false;
    for (auto& operation : action.operations) operation.contents = 0;
    if (action.kind == Action::Kind::submit)
      step.push_back(std::move(action));
    else if (!ends())
      return false;
  }
  return step.empty() || ends();
}

template <class Is>
bool has_only(const Case& from, Is is) {
  return std::ranges::all_of(from.ranks.front().front(), [&](const Action& action) {
    return std::ranges::all_of(action.operations,
                               [&](const Operation& operation) { return is(operation.kind); });
  });
}

// Returns whether one plan can replay all operations of the program.
bool is_replayable(const Case& from) {
  return has_only(from, [](CollectiveKind kind) {
    return kind != CollectiveKind::send && kind != CollectiveKind::recv;
  });
}

bool has_only_allreduces(const Case& from) {
  return has_only(from, [](CollectiveKind kind) { return kind == CollectiveKind::allreduce; });
}

}  // namespace

bool View::has_fault(Fault::Kind kind) const {
  return std::any_of(from.faults.begin(), from.faults.end(),
                     [&](const Fault& fault) { return fault.kind == kind; });
}

bool View::may_wait_for_ever() const {
  return record.damaged != kNever && from.world.operation_timeout == 0 &&
         std::ranges::all_of(record.ranks,
                             [](const RankRecord& state) { return state.broken == kNever; });
}

void ranks_sleep_and_wake(const View& view, Findings& findings) {
  if (view.record.hit_the_limit && !view.may_wait_for_ever())
    add(findings, 2, "the world did not come to rest");
  for (size_t rank = 0; rank < view.record.ranks.size(); ++rank) {
    const RankRecord& state = view.record.ranks[rank];
    view.looks(2);
    if (state.sleeps_with_something_pending && !view.may_wait_for_ever())
      add(findings, 2,
          fmt::format("rank {} sleeps with something pending, and nothing can happen "
                      "any more",
                      rank));
    if (state.went_on_at_a_look)
      add(findings, 2,
          fmt::format("rank {} could go on, and slept until it looked after its peers", rank));
    if (state.most_steps_in_vain > most_in_vain(view.from))
      add(findings, 2,
          fmt::format("rank {} took {} steps in a row without cause", rank,
                      state.most_steps_in_vain));
  }
}

namespace {

// Returns whether a receive from any rank was pending on `rank` and failed, so that its sender is
// unknown.
bool may_have_taken(const View& view, int rank, const std::string& name) {
  return std::ranges::any_of(view.record.operations, [&](const OperationRecord& one) {
    const Operation* asked = view.oracle.operation_of(one);
    return one.site.rank == rank && one.name == name && !one.is_refused && one.source < 0 &&
           asked != nullptr && asked->root == kAnyRank;
  });
}

}  // namespace

void results_are_right(const View& view, Findings& findings) {
  for (const auto& operation : view.record.operations) {
    if (!ended_well(operation) || view.oracle.is_join(operation)) continue;
    if (view.is_damaged(operation.ended)) continue;
    view.looks(3);
    const Meeting* meeting = view.oracle.meeting_of(operation);
    if (meeting == nullptr) {
      add(findings, 3, called(operation) + " ended well, and nobody sent");
      continue;
    }
    if (!meeting->is_complete() && meeting->is_pair &&
        may_have_taken(view, meeting->absent.front(), operation.name))
      continue;
    if (!meeting->is_complete()) {
      add(findings, 3,
          fmt::format("{} ended well though rank {} never asked for it", called(operation),
                      meeting->absent.front()));
      continue;
    }
    if (const auto why = view.oracle.disagreement(*meeting); !why.empty()) {
      add(findings, 3,
          fmt::format("{} ended well though ranks disagree: {}", called(operation), why));
      continue;
    }
    const auto expected = view.oracle.result(*meeting, operation.site.rank);
    if (operation.output == expected) continue;
    const auto differ = std::mismatch(operation.output.begin(), operation.output.end(),
                                      expected.begin(), expected.end());
    add(findings, 3,
        fmt::format("{} gave {} bytes that differ from the expected {} from byte {} on",
                    called(operation), operation.output.size(), expected.size(),
                    differ.first - operation.output.begin()));
  }
}

void refusals_change_nothing(const View& view, Findings& findings) {
  for (const auto& operation : view.record.operations) {
    // A mismatch of calls that never match ends the communicator and all that is pending.
    const Micros broken = view.rank(operation.site.rank).broken;
    const bool is_refusal = operation.is_refused ||
                            (operation.error_code == static_cast<int>(ErrorCode::mismatch) &&
                             (broken == kNever || operation.ended < broken)) ||
                            operation.error_code == static_cast<int>(ErrorCode::duplicate_name);
    if (is_refusal) view.looks(4);
    if (is_refusal && operation.input_changed && !is_killed(view, operation))
      add(findings, 4, called(operation) + " was refused, but its memory changed");
  }
}

void leavers_finish_for_all(const View& view, Findings& findings) {
  // Another loss may end an operation that the leaving rank had finished.
  Micros lost = std::numeric_limits<Micros>::max();
  for (const auto& state : view.record.ranks)
    for (const Micros at : {state.broken, state.killed})
      if (at != kNever) lost = std::min(lost, at);
  if (view.has_fault(Fault::Kind::reset) || view.has_fault(Fault::Kind::half_open)) return;
  for (const auto& meeting : view.oracle.meetings())
    for (const auto& [leaver, left] : meeting.voices) {
      if (view.rank(leaver).farewell == kNever || left.record->ended == kNever) continue;
      for (const auto& [other, voice] : meeting.voices) {
        const auto& theirs = *voice.record;
        const Micros own_end = view.rank(other).closing;
        if (other == leaver || theirs.ended == kNever || view.is_damaged(theirs.ended)) continue;
        // A rank may close while its operations are pending, and may give memory back too early.
        if (theirs.error_code == static_cast<int>(ErrorCode::invalid_argument)) continue;
        // A blocking sendrecv has one error for both parts.
        if (view.oracle.action_of(theirs).kind == Action::Kind::block &&
            view.oracle.action_of(theirs).operations.size() > 1)
          continue;
        if (own_end != kNever && own_end <= theirs.ended) continue;
        if (lost <= theirs.ended) continue;
        // Nor must the operation end well if another needed rank left without having finished it.
        const auto has_left_before = [&](int rank) {
          const Micros farewell = view.rank(rank).farewell;
          return farewell != kNever && farewell <= theirs.ended;
        };
        const bool another_left =
            std::ranges::any_of(meeting.voices,
                                [&](const auto& one) {
                                  const auto& said = *one.second.record;
                                  return said.ended <= theirs.ended &&
                                         said.error_code == static_cast<int>(ErrorCode::closed);
                                }) ||
            std::ranges::any_of(meeting.joined, has_left_before);
        view.looks(6);
        if (ended_well(*left.record) && !ended_well(theirs) && !another_left)
          add(findings, 6,
              fmt::format("{} failed, but rank {}, which left, had finished it", called(theirs),
                          leaver));
        const bool left_it = left.record->error_code == static_cast<int>(ErrorCode::closed);
        // The operation may have ended on this rank before it learned of the leaving.
        const Micros way = view.from.world.over_streams
                               ? 3 * longest_way(view.from)
                               : 3 * view.from.world.latency + kSecond / 500;
        const Micros heard = left.record->ended + way;
        if (!view.from.faults.empty() || theirs.ended <= heard) continue;
        if (left_it && ended_well(theirs))
          add(findings, 6,
              fmt::format("{} ended well, but rank {} left without having finished it",
                          called(theirs), leaver));
      }
    }
}

void queues_have_one_order(const View& view, Findings& findings) {
  std::map<std::pair<uint64_t, uint64_t>, std::string> names;
  for (size_t rank = 0; rank < view.record.ranks.size(); ++rank) {
    std::map<uint64_t, uint64_t> last;
    for (const auto& start : view.record.ranks[rank].starts) {
      const auto [at, is_first] = last.emplace(start.queue, start.tag);
      if (!is_first && start.tag <= at->second)
        add(findings, 7,
            fmt::format("rank {} started tag {} of queue {} after tag {}", rank, start.tag,
                        start.queue, at->second));
      at->second = start.tag;
      view.looks(7);
      if (view.is_damaged(start.at)) continue;
      const auto& known =
          names.emplace(std::pair(start.queue, start.tag), start.names).first->second;
      if (known != start.names)
        add(findings, 7,
            fmt::format("tag {} of queue {} is {} on rank {} and {} on another", start.tag,
                        start.queue, start.names, rank, known));
    }
  }
}

namespace {

// Returns whether peers may still write to the operation's output. They may not have learned yet of
// the loss, the leaving or the limit that ended it on this rank.
bool may_still_be_written(const View& view, const OperationRecord& operation) {
  if (!operation.is_reached || operation.is_refused || operation.error_code == 0) return false;
  if (has_code(operation.error_code, {ErrorCode::invalid_argument})) return false;
  const Micros broken = view.rank(operation.site.rank).broken;
  return !has_code(operation.error_code, {ErrorCode::mismatch}) ||
         (broken != kNever && broken <= operation.ended);
}

}  // namespace

void the_broken_start_nothing(const View& view, Findings& findings) {
  for (size_t rank = 0; rank < view.record.ranks.size(); ++rank) {
    const RankRecord& state = view.record.ranks[rank];
    if (state.broken != kNever) view.looks(8);
    for (const auto& start : state.starts)
      if (state.broken != kNever && start.at > state.broken)
        add(findings, 8, fmt::format("rank {} started {} after it was broken", rank, start.names));
  }
  for (const auto& operation : view.record.operations) {
    if (is_killed(view, operation)) continue;
    if (operation.touched_after_end && !may_still_be_written(view, operation))
      add(findings, 8, called(operation) + ": its memory was touched after its Work was done");
  }
}

void farewells_are_final(const View& view, Findings& findings) {
  for (size_t rank = 0; rank < view.record.ranks.size(); ++rank) {
    const RankRecord& state = view.record.ranks[rank];
    if (state.farewell == kNever) continue;
    view.looks(9);
    for (const auto& start : state.starts)
      if (start.at > state.farewell)
        add(findings, 9, fmt::format("rank {} started {} after its farewell", rank, start.names));
    if (state.operation_messages_after_farewell > 0)
      add(findings, 9,
          fmt::format("rank {} sent {} messages about operations after its farewell", rank,
                      state.operation_messages_after_farewell));
    if (state.tells_launcher == state.closing_error.empty())
      add(findings, 9,
          fmt::format("rank {} left because of \"{}\", and the launcher was{} told", rank,
                      state.closing_error, state.tells_launcher ? "" : " not"));
  }
}

void negotiation_is_short(const View& view, Findings& findings) {
  if (!is_steady(view.from)) return;
  view.looks(10);
  uint64_t messages = 0, batches = 0;
  for (const auto& state : view.record.ranks) {
    messages += state.negotiation_messages;
    batches = std::max(batches, state.batches);
  }
  const uint64_t allowed = 2 * static_cast<uint64_t>(view.from.world.size - 1) * batches;
  if (messages > allowed)
    add(findings, 10,
        fmt::format("{} batches took {} messages, of which {} would do", batches, messages,
                    allowed));
  if (!is_replayable(view.from)) return;
  // The number of steps after which a step is replayed for the first time.
  const auto first = static_cast<size_t>(view.from.world.replay_after) + 1;
  size_t ranks_that_allocate = 0;
  for (size_t rank = 0; rank < view.record.ranks.size(); ++rank) {
    const auto& steps = view.record.ranks[rank].steps;
    if (steps.size() <= first) continue;
    view.looks(10);
    const auto messages = steps.back().negotiation_messages - steps[first - 1].negotiation_messages;
    if (messages > 0)
      add(findings, 10,
          fmt::format("rank {} sent {} messages in steps that are replayed", rank, messages));
    // Operations that run at the same time each need memory, which later steps reuse. Their number
    // is chance. So a step may need more memory than the steps before it, but not every step of
    // every rank.
    constexpr size_t kEnough = 3;
    if (!has_only_allreduces(view.from) || steps.size() < first + kEnough) continue;
    const auto even = std::adjacent_find(
        steps.begin() + static_cast<std::ptrdiff_t>(first), steps.end(),
        [](const auto& one, const auto& next) { return one.allocations == next.allocations; });
    if (even == steps.end()) ++ranks_that_allocate;
  }
  if (ranks_that_allocate == view.record.ranks.size())
    add(findings, 10, "all ranks allocate in each step that is replayed");
}

void phases_follow_the_drawing(const View& view, Findings& findings) {
  for (size_t rank = 0; rank < view.record.ranks.size(); ++rank) {
    int at = 0;
    for (const auto& change : view.record.ranks[rank].phases) {
      const std::pair edge(change.from, change.to);
      view.looks(11);
      const bool drawn =
          edge == kClosedWell || std::find(kEdges.begin(), kEdges.end(), edge) != kEdges.end();
      if (!drawn || change.from != at)
        add(findings, 11,
            fmt::format("rank {} went from phase {} to {} when it was in {}", rank, change.from,
                        change.to, at));
      at = change.to;
    }
  }
}

void ends_are_counted(const View& view, Findings& findings) {
  struct Counts {
    uint64_t taken = 0, well = 0, blocking = 0, pairs = 0;
  };
  std::vector<Counts> counts(view.record.ranks.size());
  for (const auto& one : view.record.operations) {
    const Operation* asked = view.oracle.operation_of(one);
    if (one.is_refused || asked == nullptr) continue;
    auto& count = counts[static_cast<size_t>(one.site.rank)];
    const bool is_pair = asked->kind == CollectiveKind::send || asked->kind == CollectiveKind::recv;
    const bool is_blocking =
        view.from.world.serves_blocking && view.oracle.action_of(one).kind == Action::Kind::block;
    const bool is_allreduce = asked->kind == CollectiveKind::allreduce && !is_blocking;
    if (is_blocking && is_pair) ++count.pairs;
    if (is_blocking && !is_pair && one.ended != kNever) ++count.blocking;
    if (is_allreduce) ++count.taken;
    if (is_allreduce && ended_well(one)) ++count.well;
  }
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    const RankRecord& state = view.record.ranks[rank];
    const Counts& count = counts[rank];
    if (state.killed != kNever) continue;
    view.looked[12] += count.well + count.blocking + count.pairs;
    if (state.allreduces_counted < count.well || state.allreduces_counted > count.taken)
      add(findings, 12,
          fmt::format("rank {} counts {} allreduces; it took {}, and {} ended well", rank,
                      state.allreduces_counted, count.taken, count.well));
    if (state.blocking_counted != count.blocking || state.pairs_counted != count.pairs)
      add(findings, 12,
          fmt::format("rank {} counts {} blocking calls and {} sends and receives of {} and {}",
                      rank, state.blocking_counted, state.pairs_counted, count.blocking,
                      count.pairs));
  }
}

void nothing_is_left(const View& view, Findings& findings) {
  for (size_t rank = 0; rank < view.record.ranks.size(); ++rank) {
    const RankRecord& state = view.record.ranks[rank];
    // A rank that waits for ever has not closed; I1 reports it.
    if (state.killed != kNever || state.over == kNever) continue;
    view.looks(13);
    const int left = state.entries_left + state.runs_left + state.tickets_left + state.regions_left;
    if (left > 0)
      add(findings, 13,
          fmt::format("rank {} leaves {} entries, {} runs, {} tickets and {} regions", rank,
                      state.entries_left, state.runs_left, state.tickets_left, state.regions_left));
  }
}

void callbacks_run_once(const View& view, Findings& findings) {
  for (const auto& operation : view.record.operations) {
    if (view.oracle.action_of(operation).kind != Action::Kind::submit || operation.is_refused ||
        is_killed(view, operation))
      continue;
    view.looks(14);
    // If memory runs out, a callback is destroyed without a call.
    if (operation.callbacks == 0 && view.record.memory_ran_out) continue;
    const int expected = operation.ended == kNever ? 0 : 1;
    if (operation.callbacks != expected)
      add(findings, 14,
          fmt::format("{}: its callback ran {} times", called(operation), operation.callbacks));
  }
}

void the_idle_are_left_alone(const View& view, Findings& findings) {
  for (size_t rank = 0; rank < view.record.ranks.size(); ++rank) {
    const auto& sent = view.record.ranks[rank].messages;
    if (rank > 0) view.looked[15] += sent.at(static_cast<size_t>(MessageType::ping));
    for (const Micros at : view.record.ranks[rank].idle_pings)
      add(findings, 15, fmt::format("rank {} pinged at {} though nothing was pending", rank, at));
  }
}

void memory_outlives_its_use(const View& view, Findings& findings) {
  for (size_t rank = 0; rank < view.record.ranks.size(); ++rank) {
    view.looked[16] += static_cast<uint64_t>(view.record.ranks[rank].regions_retired);
    if (view.record.ranks[rank].memory_retired_in_use)
      add(findings, 16, fmt::format("rank {} freed memory that was in use", rank));
    const auto is_of_rank = [&](const OperationRecord& one) {
      return one.site.rank == static_cast<int>(rank) && may_still_be_written(view, one);
    };
    if (view.record.ranks[rank].memory_written_late &&
        std::ranges::none_of(view.record.operations, is_of_rank))
      add(findings, 16, fmt::format("memory of rank {} was written when it was freed", rank));
  }
}

Findings check(const Case& from, const Record& record, Looks* looks) {
  const View view(from, record);
  Findings findings;
  for (const auto& promise : record.broken_promises) findings.push_back({0, promise});
  for (const auto invariant :
       {calls_end, ranks_sleep_and_wake, results_are_right, refusals_change_nothing,
        errors_have_one_cause, leavers_finish_for_all, queues_have_one_order, vetoes_are_heard,
        the_broken_start_nothing, farewells_are_final, negotiation_is_short,
        phases_follow_the_drawing, ends_are_counted, nothing_is_left, callbacks_run_once,
        the_idle_are_left_alone, memory_outlives_its_use})
    invariant(view, findings);
  // A program that waits in a circle need not end, nor release its operations.
  const bool is_any_busy = std::ranges::any_of(record.ranks, [&](const RankRecord& state) {
    return state.most_steps_in_vain > most_in_vain(from);
  });
  if (!is_any_busy && waits_in_a_circle(view))
    std::erase_if(findings, [](const Finding& finding) {
      return finding.invariant == 1 || finding.invariant == 2;
    });
  if (looks != nullptr)
    for (size_t i = 0; i < looks->size(); ++i) (*looks)[i] += view.looked[i];
  return findings;
}

}  // namespace tutti::simulation
