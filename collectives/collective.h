#pragma once

#include <cstdint>
#include <span>
#include <string_view>

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

constexpr std::string_view to_string(CollectiveKind kind) noexcept {
  constexpr std::string_view kNames[kCollectiveKindCount] = {
      "allreduce",      "allgather", "broadcast", "reduce", "gather", "scatter",
      "reduce_scatter", "alltoall",  "send",      "recv",   "barrier"};
  return kNames[static_cast<int>(kind)];
}

/// Returns whether the output depends on the data of all ranks. For these kinds (and barrier) every
/// message carries a verdict, and every rank learns the OR of all ranks' verdicts.
constexpr bool reduces(CollectiveKind kind) noexcept {
  return kind == CollectiveKind::allreduce || kind == CollectiveKind::reduce ||
         kind == CollectiveKind::reduce_scatter;
}

/// One collective as a value. A backend starts any of them by one call. Counts are in elements.
///
/// kind            input            output                 send_counts        recv_counts
/// allreduce       count            count                  {count}            -
/// broadcast       count at root    count                  {count}            -
/// reduce          count            count at root          {count}            -
/// allgather(v)    counts[rank]     sum of counts          counts, one a rank -
/// gather(v)       counts[rank]     sum of counts at root  counts             -
/// scatter(v)      sum at root      counts[rank]           counts             -
/// reduce_scatter  sum of counts    counts[rank]           counts             -
/// alltoall(v)     sum of send      sum of recv            to each rank       from each rank
/// send, recv      count            count                  {count}            -
/// barrier         -                -                      -                  -
///
/// input may equal output if both have the same number of elements. The input of an allgather or
/// (at root) gather may be this rank's part of output; the output of a scatter (at root) may be
/// this rank's part of input. Other overlaps are not allowed. Nothing outside of the ranges in the
/// table is read or written. Either pointer may be null where the table has "-". Spans and memory
/// are borrowed until the operation is over.
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
  /// alltoall: the largest count that any rank sends to any other, equal on all ranks; -1 if
  /// unknown. A backend may need it to choose the same algorithm on all ranks.
  int64_t longest = -1;
};

/// How partial sums of a collective may be sent.
enum class Sums : uint8_t {
  plain,   // in the collective's type
  scaled,  // f16 with a divisor: partial sums must not overflow unless the result does
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
  // The other types are summed within their own range by every algorithm.
  return is_scaled && collective.dtype == DataType::f16 ? Sums::scaled : Sums::plain;
}

}  // namespace tutti
