#pragma once

#include <cstdint>
#include <span>

#include "tutti/collectives/kinds.h"
#include "tutti/tensor/dtype.h"
#include "tutti/tensor/packing.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti {

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
