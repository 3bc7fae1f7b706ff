#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/simulation/judge/oracle.h"
#include "tests/simulation/record.h"

namespace tutti::simulation {

/// One promise that a run did not keep.
struct Finding {
  int invariant = 0;  // its number below
  std::string text;
};
using Findings = std::vector<Finding>;

/// How many operations, ranks or calls each invariant has looked at.
using Looks = std::array<uint64_t, 18>;

/// The invariants look at this.
struct View {
  View(const Case& the_case, const Record& the_record)
      : from(the_case), record(the_record), oracle(the_case, the_record) {}
  const RankRecord& rank(int number) const { return record.ranks.at(static_cast<size_t>(number)); }
  bool has_fault(Fault::Kind kind) const;
  /// A message with a wrong byte may name what no rank asks for, and a byte that differs within one
  /// may be any other number: what ends later can be anything.
  bool is_damaged(Micros by) const { return record.damaged != kNever && record.damaged <= by; }
  /// Whether what is pending may wait for ever: for what a message with a wrong byte named. It ends
  /// once a rank breaks off, or when its time is over.
  bool may_wait_for_ever() const;
  /// Counts what an invariant has looked at: none at all proves nothing.
  void looks(int invariant) const { ++looked[static_cast<size_t>(invariant)]; }
  const Case& from;
  const Record& record;
  const Oracle oracle;
  mutable Looks looked{};
};

/// All of them. I17, that one case has one trace, needs two runs.
/// `looks`: what they looked at is added to it.
Findings check(const Case& from, const Record& record, Looks* looks = nullptr);

// I1: every call ends, and soon enough after what made it end.
void calls_end(const View& view, Findings& findings);
// I2: no wake-up is lost, and no rank is busy with nothing.
void ranks_sleep_and_wake(const View& view, Findings& findings);
// I3: what ends well equals the plain model to the bit.
void results_are_right(const View& view, Findings& findings);
// I4: what was refused is unchanged to the byte.
void refusals_change_nothing(const View& view, Findings& findings);
// I5: each error has its cause, one on all ranks.
void errors_have_one_cause(const View& view, Findings& findings);
// I6: what a leaver finished ends on all, and nothing else that needs it does.
void leavers_finish_for_all(const View& view, Findings& findings);
// I7: each queue has one growing order on all ranks.
void queues_have_one_order(const View& view, Findings& findings);
// I7 too: a rank that has started all before a bucket which another rank vetoed takes part at once.
void vetoes_are_heard(const View& view, Findings& findings);
// I8: nothing starts after `broken`, no memory is touched once its Work is done, and each operation
// is released once.
void the_broken_start_nothing(const View& view, Findings& findings);
// I9: after its farewell a rank starts nothing and sends nothing about operations.
void farewells_are_final(const View& view, Findings& findings);
// I10: equal steps without faults need two messages a batch and rank at most. Once they are
// replayed they need neither messages nor memory.
void negotiation_is_short(const View& view, Findings& findings);
// I11: phases follow the drawing.
void phases_follow_the_drawing(const View& view, Findings& findings);
// I12: a Work that is seen done is counted, and nothing else is.
void ends_are_counted(const View& view, Findings& findings);
// I13: at the end nothing is left.
void nothing_is_left(const View& view, Findings& findings);
// I14: each callback runs once, after the end.
void callbacks_run_once(const View& view, Findings& findings);
// I15: pings are sent only while something is pending.
void the_idle_are_left_alone(const View& view, Findings& findings);
// I16: retired memory goes only when it is not used.
void memory_outlives_its_use(const View& view, Findings& findings);

/// Returns whether the ranks wait for each other in a circle: each waits for what another one never
/// asks for. That is a mistake of the program, not of the communicator.
bool waits_in_a_circle(const View& view);

/// The longest way of a message, behind all data that there is.
Micros longest_way(const Case& from);

/// Why an operation may not have ended with the error that it has, as docs/failures.md says;
/// empty: it may.
std::string why_not(const View& view, const OperationRecord& operation);

}  // namespace tutti::simulation
