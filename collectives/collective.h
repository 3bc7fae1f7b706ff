#pragma once

#include <cstdint>
#include <span>

#include "tutti/collectives/kinds.h"
#include "tutti/tensor/dtype.h"
#include "tutti/tensor/packing.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti {

/// One collective as a value; a backend starts any of them by one call. Counts are in elements.
/// kKindTraits says what input and output hold. send_counts has one count if either of them holds
/// the whole, else one for each rank, and none for a barrier. recv_counts has one for each rank if
/// parts are exchanged, else none.
///
/// input may equal output where both hold as many elements. An allgather's or (at root) gather's
/// input may be this rank's part of output, a scatter's output (at root) this rank's part of input;
/// other overlaps are not allowed. Input is never read beyond, and output never written beyond what
/// kKindTraits says; either may be null where it holds nothing. Spans and memory are borrowed until
/// the operation is done.
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
  /// If parts are exchanged, the most elements that any rank sends to any other. All ranks have the
  /// same number, or -1 if it is not known. A backend may need it to choose alike.
  int64_t longest = -1;
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
