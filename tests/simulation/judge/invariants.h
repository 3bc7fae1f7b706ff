#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/simulation/judge/oracle.h"
#include "tests/simulation/record.h"

namespace tutti::simulation {

/// A broken promise of a run.
struct Finding {
  int invariant = 0;  // the number of the invariant, as below
  std::string text;
};
using Findings = std::vector<Finding>;

/// How many operations, ranks or calls each invariant has checked.
using Looks = std::array<uint64_t, 18>;

/// The input of the invariants.
struct View {
  View(const Case& the_case, const Record& the_record)
      : from(the_case), record(the_record), oracle(the_case, the_record) {}
  const RankRecord& rank(int number) const { return record.ranks.at(static_cast<size_t>(number)); }
  bool has_fault(Fault::Kind kind) const;
  /// Returns whether a message with a wrong byte was written by then. Such a message may name
  /// anything or hold any number, so everything that ends later is undefined.
  bool is_damaged(Micros by) const { return record.damaged != kNever && record.damaged <= by; }
  /// Returns whether pending operations may wait for ever because a damaged message named something
  /// else. They end once a rank breaks off or the operation timeout is over.
  bool may_wait_for_ever() const;
  /// Counts a check of an invariant. An invariant that checked nothing proves nothing.
  void looks(int invariant) const { ++looked[static_cast<size_t>(invariant)]; }
  const Case& from;
  const Record& record;
  const Oracle oracle;
  mutable Looks looked{};
};

/// Checks all invariants, except I17 (one case has one trace), which needs two runs. Adds the
/// number of checks to `looks`.
Findings check(const Case& from, const Record& record, Looks* looks = nullptr);

// I1: every call ends, soon enough after the cause of its end.
void calls_end(const View& view, Findings& findings);
// I2: no wake-up is lost, and no rank is busy without work.
void ranks_sleep_and_wake(const View& view, Findings& findings);
// I3: a result equals that of the plain model to the bit.
void results_are_right(const View& view, Findings& findings);
// I4: the memory of a refused operation is unchanged to the byte.
void refusals_change_nothing(const View& view, Findings& findings);
// I5: each error has its cause, the same on all ranks.
void errors_have_one_cause(const View& view, Findings& findings);
// I6: an operation that a leaving rank finished ends well on all ranks. Every other operation that
// needs this rank fails.
void leavers_finish_for_all(const View& view, Findings& findings);
// I7: the tags of each queue grow in the same order on all ranks.
void queues_have_one_order(const View& view, Findings& findings);
// I7 too: if one rank vetoes a bucket, each other rank takes part in it as soon as it has started
// all buckets before.
void vetoes_are_heard(const View& view, Findings& findings);
// I8: nothing starts after `broken`, no memory is touched once its Work is done, and each operation
// is released once.
void the_broken_start_nothing(const View& view, Findings& findings);
// I9: after its farewell a rank starts nothing and sends nothing about operations.
void farewells_are_final(const View& view, Findings& findings);
// I10: equal steps without faults need at most two messages for each batch and rank. Once they are
// replayed they need neither messages nor memory.
void negotiation_is_short(const View& view, Findings& findings);
// I11: phases change as the drawing allows.
void phases_follow_the_drawing(const View& view, Findings& findings);
// I12: every Work that is seen done is counted, and nothing else.
void ends_are_counted(const View& view, Findings& findings);
// I13: nothing is left at the end.
void nothing_is_left(const View& view, Findings& findings);
// I14: each callback runs once, after the end of its operation.
void callbacks_run_once(const View& view, Findings& findings);
// I15: pings are sent only while an operation is pending.
void the_idle_are_left_alone(const View& view, Findings& findings);
// I16: memory that was given back is freed only when nothing uses it.
void memory_outlives_its_use(const View& view, Findings& findings);

/// Returns whether the ranks wait for each other in a circle: each waits for an operation that
/// another one never submits. That is a mistake of the program, not of the communicator.
bool waits_in_a_circle(const View& view);

/// Returns the longest time that a message may need, behind all other data.
Micros longest_way(const Case& from);

/// Returns why an operation may not have ended with its error according to docs/failures.md, or "".
std::string why_not(const View& view, const OperationRecord& operation);

}  // namespace tutti::simulation
