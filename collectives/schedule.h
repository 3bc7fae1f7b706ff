#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/collectives/collective.h"

namespace tutti {

/// Memory that a schedule knows.
enum class Slot : uint8_t { input, output, scratch };

/// What a step does.
enum class Action : uint8_t {
  send,   // source of slot `from` to `peer`
  recv,   // from `peer` into target of slot `to`
  copy,   // source of `from` to target of `to` (may be the same place: nothing to do)
  reduce  // target of `to` = op over the operands in order, rounded once; see Operands
};

/// What a reduction combines: `count` operands in order, of which number `own` is the step's source
/// and the others, also in order, stand in scratch from `begin` on, `stride` elements apart. The
/// target may be the place of any one of them.
struct Operands {
  int count = 1;                                     // with the own one
  int own = 0;                                       // place of the step's source among them
  int64_t begin = 0;                                 // in scratch
  int64_t stride = 0;                                // elements from one to the next
  bool operator==(const Operands&) const = default;  // of all fields
};

/// One thing that one rank does. Rounds are counted from 0 within a segment. In a round a rank
/// first posts all its receives and sends, then, when they are all done, runs its copies and
/// reductions in listed order; then the next round begins. Between two ranks at most one message
/// travels in each direction per round (key = round), and a message is sent even if it is empty: it
/// carries the verdict.
struct Step {
  int round = 0;                 // from 0
  Action action = Action::copy;  // what is done
  int peer = -1;                 // of send and recv
  Slot from = Slot::input;       // read
  Slot to = Slot::output;        // written
  Range source{};                // of `from`
  Range target{};                // of `to`
  Operands operands{};           // reduce only
  int divisor = 1;               // reduce: of its result; more than 1 only for Sums::scaled
};

/// What a schedule is computed from. Pure data: the same on every rank but for `rank`.
struct Problem {
  CollectiveKind kind = CollectiveKind::allreduce;  // what is computed
  int rank = 0;                                     // this one
  int size = 1;                                     // how many ranks there are
  int root = 0;                                     // or the peer of send and recv
  std::span<const int64_t> counts;                  // see Collective: send_counts
  std::span<const int64_t> recv_counts;             // alltoall only
  std::span<const int> hosts;  // host number of each rank, empty: all on one host
  bool in_place = false;       // input and output are the same memory
  Sums sums = Sums::plain;     // which sums may travel
};

/// What one rank does for one segment of a collective. Offsets are elements of the segment's input
/// and output; scratch is private to the segment.
struct Schedule {
  std::vector<Step> steps;       // ascending rounds
  int64_t scratch = 0;           // elements of scratch
  bool scales_at_owner = false;  // each reduce applies the scale; else the executor does at the end
  int divisor = 1;               // by which the steps have divided a result in all
  /// The round after whose messages this rank has heard from all others, if output is written only
  /// from then on; -1: not before the end.
  int heard_all = -1;
};

/// A pure function from a valid Problem to a Schedule, under a name. `reduces_in_rank_order` marks
/// those that keep the promise of determinism=rank_order: each element is reduced at one owner,
/// over all ranks in ascending order, or not reduced at all.
///
/// What every algorithm keeps (tests/collectives/validate.h checks it): all ranks end with the same
/// bits; where reduces(kind), and in a barrier, a rank that has run its schedule has heard,
/// directly or not, from every other rank.
struct Algorithm {
  std::string_view name;                            // as TUTTI_ALGORITHMS calls it
  CollectiveKind kind = CollectiveKind::allreduce;  // what it computes
  bool reduces_in_rank_order = false;               // see above; no sum travels
  Schedule (*plan)(const Problem&) = nullptr;       // pure; any thread
  bool scales_sums = false;                         // those that travel, for Sums::scaled
  bool keeps(Sums sums) const {                     // whether it serves them
    return sums == Sums::plain || reduces_in_rank_order || (sums == Sums::scaled && scales_sums);
  }
};

/// Every algorithm of the library, all kinds.
std::span<const Algorithm> algorithms();
/// Throws Error(invalid_argument) that lists the names for the kind.
const Algorithm& find_algorithm(CollectiveKind kind, std::string_view name);

/// Throws Error(invalid_argument) that says what is wrong: ranks, root, numbers of counts.
void require_valid(const Problem& problem);

/// Elements of input and of output that a rank holds for a Problem.
int64_t input_count(const Problem& problem);
/// See input_count.
int64_t output_count(const Problem& problem);

}  // namespace tutti
