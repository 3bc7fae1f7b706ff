#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/collectives/collective.h"

namespace tutti {

/// Memory that a schedule refers to.
enum class Slot : uint8_t { input, output, scratch };

/// The kind of a step.
enum class Action : uint8_t {
  send,   // sends the source in slot `from` to `peer`
  recv,   // receives from `peer` into the target in slot `to`
  copy,   // copies the source in `from` to the target in `to`; nothing happens if they are the same
  reduce  // target in `to` = op over the operands in order, rounded once; see Operands
};

/// The operands of a reduction: `count` operands in order. Operand number `own` is the step's
/// source. The other operands are in scratch, also in order, from `begin` on, `stride` elements
/// apart. The target may be the same memory as any one operand.
struct Operands {
  int count = 1;       // operands, including the step's source
  int own = 0;         // index of the step's source
  int64_t begin = 0;   // offset of the first of the other operands, in scratch
  int64_t stride = 0;  // elements from one operand to the next
  bool operator==(const Operands&) const = default;  // compares all fields
};

/// One action of one rank. Rounds are counted from 0 within a segment. In each round a rank first
/// posts all its receives and sends. When all of these messages are complete, it runs its copies
/// and reductions in listed order, and the next round begins. In each round at most one message
/// goes in each direction between two ranks, so the round identifies it. Empty messages are sent,
/// too, because they carry the verdict (go or veto).
struct Step {
  int round = 0;                 // counted from 0
  Action action = Action::copy;  // kind of the step
  int peer = -1;                 // only for send and recv
  Slot from = Slot::input;       // slot that is read
  Slot to = Slot::output;        // slot that is written
  Range source{};                // range in `from`
  Range target{};                // range in `to`
  Operands operands{};           // only for reduce
  int divisor = 1;  // divides the result of a reduce; more than 1 only for Sums::scaled
};

/// The input of a schedule. Pure data: equal on every rank except for `rank`.
struct Problem {
  CollectiveKind kind = CollectiveKind::allreduce;  // what is computed
  int rank = 0;                                     // this rank
  int size = 1;                                     // number of ranks
  int root = 0;                                     // root, or peer of send and recv
  std::span<const int64_t> counts;                  // see Collective::send_counts
  std::span<const int64_t> recv_counts;             // see Collective::recv_counts
  std::span<const int> hosts;  // host number of each rank; empty if all are on one host
  bool in_place = false;       // input and output are the same memory
  Sums sums = Sums::plain;     // how partial sums may be sent
};

/// The steps of one rank for one segment of a collective. Offsets are elements of the segment's
/// input and output. Scratch is private to the segment.
struct Schedule {
  std::vector<Step> steps;  // in ascending rounds
  int64_t scratch = 0;      // number of elements of scratch
  /// If true, each reduce step applies the scale; else the executor applies it at the end.
  bool scales_at_owner = false;
  int divisor = 1;  // total factor by which the steps have divided a result
  /// The round after whose messages this rank knows the verdicts (go or veto) of all ranks. It is
  /// set only if no output is written before that round. Otherwise it is -1, and the verdicts are
  /// known only at the end.
  int heard_all = -1;
};

/// A named pure function from a valid Problem to a Schedule. `reduces_in_rank_order` marks
/// algorithms that satisfy determinism=rank_order: each element is reduced at one owner, over all
/// ranks in ascending order, or is not reduced at all.
///
/// Every algorithm guarantees the following (tests/collectives/validate.h checks it). All ranks end
/// with the same bits. If reduces(kind), and in a barrier, a rank that has run its schedule has
/// received, directly or indirectly, the verdict of every other rank.
struct Algorithm {
  std::string_view name;                            // name in TUTTI_ALGORITHMS
  CollectiveKind kind = CollectiveKind::allreduce;  // kind of collective
  bool reduces_in_rank_order = false;               // no partial sum is sent (see above)
  Schedule (*plan)(const Problem&) = nullptr;       // pure function; any thread may call it
  bool scales_sums = false;                         // keeps partial sums in range, for Sums::scaled
  bool keeps(Sums sums) const {                     // whether it supports these sums
    return sums == Sums::plain || reduces_in_rank_order || (sums == Sums::scaled && scales_sums);
  }
};

/// Returns every algorithm of the library, for all kinds.
std::span<const Algorithm> algorithms();
/// Returns the algorithm of this name. If there is none, throws Error(invalid_argument) that lists
/// the names for the kind.
const Algorithm& find_algorithm(CollectiveKind kind, std::string_view name);

/// Throws Error(invalid_argument) that names the invalid part: ranks, root or number of counts.
void require_valid(const Problem& problem);

/// Returns the number of elements of this rank's input.
int64_t input_count(const Problem& problem);
/// Returns the number of elements of this rank's output.
int64_t output_count(const Problem& problem);

}  // namespace tutti
