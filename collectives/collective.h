#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "tutti/tensor/dtype.h"
#include "tutti/tensor/packing.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti {

/// The numbers are part of the wire format.
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

/// Kinds whose output depends on the data of all ranks. On these (and on barrier) every message
/// carries a verdict and every rank learns the OR of all ranks' verdicts.
constexpr bool reduces(CollectiveKind kind) noexcept {
  return kind == CollectiveKind::allreduce || kind == CollectiveKind::reduce ||
         kind == CollectiveKind::reduce_scatter;
}

/// One collective as a value; a backend starts any of them by one call. Counts are in elements.
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
/// input may equal output where both hold as many elements. An allgather's or (at root) gather's
/// input may be this rank's part of output, a scatter's output (at root) this rank's part of input;
/// other overlaps are not allowed. Input is never read beyond, and output never written beyond what
/// the table says; either may be null where the table says nothing. Spans and memory are borrowed
/// until the operation is done.
struct Collective {
  CollectiveKind kind = CollectiveKind::barrier;
  DataType dtype = DataType::f32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;  // rooted kinds; the peer of send and recv
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::span<const int64_t> send_counts;
  std::span<const int64_t> recv_counts;
  Scale scale;  // applied once to the final values of reducing kinds (op average adds 1/n itself)
  /// alltoall: the most that any rank sends to any other, alike on all ranks; -1: not known. A
  /// backend may need it to choose alike.
  int64_t longest = -1;
};

/// Which bits of a result must be equal.
enum class Determinism : uint8_t {
  fastest,    // the same bits on all ranks
  run,        // and from run to run: choices depend on nothing that varies
  rank_order  // and over backends, modes, bucket layouts and arrival orders
};

/// Elements [begin, begin + count).
struct Range {
  int64_t begin = 0;                              // first element
  int64_t count = 0;                              // of elements
  int64_t end() const { return begin + count; }   // one past the last
  bool operator==(const Range&) const = default;  // of both
};

/// How the sums of a collective may travel before they are its result.
enum class Sums : uint8_t {
  plain,    // they travel in its type
  scaled,   // f16 that is divided: sums on the way must not overflow if the result does not
  at_owner  // averages of integers: no sum travels; a rank that has all operands sums them wide
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
