#pragma once

#include <cstdint>
#include <span>

#include "tutti/collectives/kinds.h"
#include "tutti/tensor/dtype.h"
#include "tutti/tensor/packing.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti {

/// One collective as a value. A backend starts any of them by one call. Counts are in elements.
/// kKindTraits says what input and output hold. send_counts has one count if either of them holds
/// the whole, none for a barrier, and else one for each rank. recv_counts has one for each rank if
/// parts are exchanged, and else none.
///
/// input may equal output if both have the same number of elements. The input of an allgather or
/// (at root) gather may be this rank's part of output; the output of a scatter (at root) may be
/// this rank's part of input. Other overlaps are not allowed. Nothing outside of the ranges in
/// kKindTraits is read or written. Either pointer may be null where it holds nothing. Spans and
/// memory are borrowed until the operation is over.
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
  /// ranks, or -1 if unknown. A backend may need it to choose the same algorithm on all ranks.
  int64_t longest = -1;
};

/// Says which bits of a result must be equal.
enum class Determinism : uint8_t {
  fastest,    // equal bits on all ranks
  run,        // also equal from run to run: choices depend on nothing that varies
  rank_order  // also equal for all backends, modes, bucket layouts and orders of arrival
};

/// Elements [begin, begin + count).
struct Range {
  int64_t begin = 0;                              // first element
  int64_t count = 0;                              // number of elements
  int64_t end() const { return begin + count; }   // one past the last
  bool operator==(const Range&) const = default;  // compares both
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
