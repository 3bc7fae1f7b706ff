#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tutti/tensor/dtype.h"
#include "tutti/tensor/packing.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti {

/// Kinds of collectives. The numbers are part of the wire format.
enum class CollectiveKind : uint8_t {
  allreduce = 0,
  allgather = 1,
  broadcast = 2,
  reduce = 3,
  gather = 4,
  scatter = 5,
  reduce_scatter = 6,
  alltoall = 7,
  send = 8,
  recv = 9,
  barrier = 10,
};
inline constexpr int kCollectiveKindCount = 11;

/// The contents of a rank's input or output.
enum class Content : uint8_t {
  nothing,    // no elements
  whole,      // send_counts[0] elements
  part,       // the part of this rank: send_counts[rank] elements
  parts,      // the parts of all ranks, in rank order
  exchanged,  // a part for each rank (input: send_counts), or from each rank (output: recv_counts)
};

/// Says for which memory a plan (the recorded step) may repeat operations of a kind without asking
/// the coordinator.
enum class MayReplay : uint8_t {
  never,       // no memory; the two ranks repeat it between themselves, see PairLearner
  on_host,     // host memory only
  everywhere,  // the memory of hosts and devices
};

/// The facts about one kind. Code that treats kinds differently reads these facts, except the code
/// that runs one kind.
struct KindTraits {
  CollectiveKind kind;                        // kind that the row describes
  std::string_view name;                      // name in texts and settings
  Content input, output;                      // contents of a rank's input and output
  bool from_root = false;                     // only the root has an input
  bool to_root = false;                       // only the root has an output
  bool reduces = false;                       // op, scales and wire type have a meaning
  bool is_pair = false;                       // two ranks take part; `root` is the other rank
  bool may_fuse = false;                      // several operations may share a bucket
  bool joined_give_zeros = false;             // a rank that has joined takes part with zeros
  MayReplay may_replay = MayReplay::on_host;  // memory for which a plan may repeat it
};

inline constexpr std::array<KindTraits, kCollectiveKindCount> kKindTraits = {{
    {.kind = CollectiveKind::allreduce,
     .name = "allreduce",
     .input = Content::whole,
     .output = Content::whole,
     .reduces = true,
     .may_fuse = true,
     .joined_give_zeros = true,
     .may_replay = MayReplay::everywhere},
    {.kind = CollectiveKind::allgather,
     .name = "allgather",
     .input = Content::part,
     .output = Content::parts,
     .may_fuse = true},
    {.kind = CollectiveKind::broadcast,
     .name = "broadcast",
     .input = Content::whole,
     .output = Content::whole,
     .from_root = true},
    {.kind = CollectiveKind::reduce,
     .name = "reduce",
     .input = Content::whole,
     .output = Content::whole,
     .to_root = true,
     .reduces = true},
    {.kind = CollectiveKind::gather,
     .name = "gather",
     .input = Content::part,
     .output = Content::parts,
     .to_root = true},
    {.kind = CollectiveKind::scatter,
     .name = "scatter",
     .input = Content::parts,
     .output = Content::part,
     .from_root = true},
    {.kind = CollectiveKind::reduce_scatter,
     .name = "reduce_scatter",
     .input = Content::parts,
     .output = Content::part,
     .reduces = true,
     .may_fuse = true},
    {.kind = CollectiveKind::alltoall,
     .name = "alltoall",
     .input = Content::exchanged,
     .output = Content::exchanged},
    {.kind = CollectiveKind::send,
     .name = "send",
     .input = Content::whole,
     .output = Content::nothing,
     .is_pair = true,
     .may_replay = MayReplay::never},
    {.kind = CollectiveKind::recv,
     .name = "recv",
     .input = Content::nothing,
     .output = Content::whole,
     .is_pair = true,
     .may_replay = MayReplay::never},
    {.kind = CollectiveKind::barrier,
     .name = "barrier",
     .input = Content::nothing,
     .output = Content::nothing},
}};

constexpr const KindTraits& traits(CollectiveKind kind) noexcept {
  return kKindTraits[static_cast<size_t>(kind)];
}

constexpr std::string_view to_string(CollectiveKind kind) noexcept { return traits(kind).name; }

/// Returns whether the output depends on the data of all ranks. For these kinds (and barrier) every
/// message carries a verdict, and every rank learns the OR of all ranks' verdicts.
constexpr bool reduces(CollectiveKind kind) noexcept { return traits(kind).reduces; }

/// Returns whether only two ranks take part.
constexpr bool is_pair(CollectiveKind kind) noexcept { return traits(kind).is_pair; }

/// Returns whether all ranks must name the same root.
constexpr bool has_root(CollectiveKind kind) noexcept {
  return traits(kind).from_root || traits(kind).to_root;
}

/// Returns whether the output joins the parts of all ranks. Each rank contributes all of its rows.
constexpr bool joins_parts(CollectiveKind kind) noexcept {
  return traits(kind).input == Content::part;
}

/// Returns whether the rows of one tensor are distributed to the ranks.
constexpr bool deals_parts(CollectiveKind kind) noexcept {
  return traits(kind).input == Content::parts;
}

/// Returns whether each rank sends a part to each rank. A rank knows only its own counts, so the
/// coordinator's answers differ from rank to rank.
constexpr bool exchanges_parts(CollectiveKind kind) noexcept {
  return traits(kind).input == Content::exchanged;
}

/// Returns whether each row of a tensor belongs to one rank.
constexpr bool has_rows(CollectiveKind kind) noexcept {
  return joins_parts(kind) || deals_parts(kind) || exchanges_parts(kind);
}

/// Returns whether the kind treats all elements in the same way. Its tensors may have any layout
/// and be cut anywhere.
constexpr bool is_elementwise(CollectiveKind kind) noexcept {
  return traits(kind).input == Content::whole && traits(kind).output == Content::whole;
}

/// Returns whether only the root has an input, whose rows are distributed to the ranks.
constexpr bool is_described_by_root(CollectiveKind kind) noexcept {
  return traits(kind).from_root && deals_parts(kind);
}

/// Returns the kinds that reduce elements.
inline std::vector<CollectiveKind> reducing_kinds() {
  std::vector<CollectiveKind> kinds;
  for (const auto& row : kKindTraits)
    if (row.reduces) kinds.push_back(row.kind);
  return kinds;
}
/// Returns the kinds that move elements unchanged.
inline std::vector<CollectiveKind> moving_kinds() {
  std::vector<CollectiveKind> kinds;
  for (const auto& row : kKindTraits)
    if (!row.reduces && (row.input != Content::nothing || row.output != Content::nothing))
      kinds.push_back(row.kind);
  return kinds;
}

namespace kinds_detail {

/// Returns whether kKind is one of the enumerators. The compiler prints any other value as a cast.
template <CollectiveKind kKind>
constexpr bool is_named() {
  const std::string_view text = __PRETTY_FUNCTION__;
  return text.find(')', text.rfind('=')) == text.npos;
}

constexpr bool are_rows_complete() {
  for (size_t row = 0; row < kKindTraits.size(); ++row)
    if (static_cast<size_t>(kKindTraits[row].kind) != row || kKindTraits[row].name.empty())
      return false;
  return true;
}

static_assert(are_rows_complete(),
              "each kind has a row in kKindTraits, in the order of the numbers");
static_assert(is_named<kKindTraits.back().kind>() &&
                  !is_named<static_cast<CollectiveKind>(kCollectiveKindCount)>(),
              "kCollectiveKindCount does not count all kinds");

}  // namespace kinds_detail

/// One collective as a value, so that a backend starts every kind by one function. Counts are in
/// elements. kKindTraits lists the contents of input and output. send_counts has one count if the
/// input or the output is the whole tensor, none for a barrier, and one per rank for all other
/// kinds. recv_counts has one count per rank if parts are exchanged, and none otherwise.
///
/// input may equal output if both have the same number of elements. The input of an allgather or
/// (at root) gather may be this rank's part of output; the output of a scatter (at root) may be
/// this rank's part of input. Other overlaps are not allowed. Nothing outside of the ranges in
/// kKindTraits is read or written. A pointer may be null if this rank has no such input or output.
/// Spans and memory are borrowed until the operation has ended.
struct Collective {
  CollectiveKind kind = CollectiveKind::barrier;
  DataType dtype = DataType::f32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;  // root of rooted kinds; peer of send and recv
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::span<const int64_t> send_counts;
  std::span<const int64_t> recv_counts;
  Scale scale;  // applied once to the final values of reducing kinds (op average itself adds 1/n)
  /// If parts are exchanged, the largest count that any rank sends to any other. It is equal on all
  /// ranks. It is -1 if unknown. A backend may need it to choose the same algorithm on all ranks.
  int64_t longest = -1;
};

/// Says which bits of a result must be equal.
enum class Determinism : uint8_t {
  fastest,    // equal bits on all ranks
  run,        // also equal from run to run: no choice depends on measurements or timing
  rank_order  // also equal for all backends, modes, bucket layouts and orders of arrival
};

/// Elements [begin, begin + count).
struct Range {
  int64_t begin = 0;                              // first element
  int64_t count = 0;                              // number of elements
  int64_t end() const { return begin + count; }   // one past the last element
  bool operator==(const Range&) const = default;  // compares begin and count
};

/// How partial sums of a collective may be sent.
enum class Sums : uint8_t {
  plain,   // sent in the collective's type
  scaled,  // f16 with a divisor, so that partial sums overflow only if the result does
  /// Averages of integers: a rank that has all operands sums them in a wider type, and no partial
  /// sums are sent.
  at_owner
};
constexpr Sums sums_of(const Collective& collective) noexcept {
  const bool is_divided = collective.op == ReduceOp::average;
  if (!reduces(collective.kind) || (!is_divided && collective.op != ReduceOp::sum))
    return Sums::plain;
  if (!is_float(collective.dtype)) return is_divided ? Sums::at_owner : Sums::plain;
  const bool is_scaled = is_divided || !collective.scale.is_one();
  // Only f16 has such a small range that a partial sum may overflow although the scaled result does
  // not.
  return is_scaled && collective.dtype == DataType::f16 ? Sums::scaled : Sums::plain;
}

}  // namespace tutti
