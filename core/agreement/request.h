#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/collectives/collective.h"
#include "tutti/core/agreement/wire.h"
#include "tutti/tensor/device.h"
#include "tutti/tensor/shape.h"

namespace tutti {

/// Signature::place is the arena's number above these bits, and the offset in bytes.
inline constexpr int kArenaShift = 44;

/// The root of a receive that takes what whichever rank sends.
inline constexpr int32_t kFromAnyRank = -1;

/// What all ranks must agree on for one name (the first extent of gathered kinds excepted).
struct Signature {
  CollectiveKind kind = CollectiveKind::allreduce;
  DataType dtype = DataType::f32;
  DataType wire = DataType::f32;  // the type in which it travels
  ReduceOp op = ReduceOp::sum;
  DeviceKind placement = DeviceKind::cpu;
  int32_t root = 0;  // or the peer of send and recv, or kFromAnyRank
  int32_t priority = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  int64_t place = -1;   // in the ranks' GradientArena: its number and the offset; -1: in none
  int64_t begin = 0;    // elements before this one are done already (after a veto)
  uint64_t layout = 0;  // digest of its strides, or of the arrays in the arena; 0: row-major memory
  bool updates = false;  // every rank updates an optimizer's arrays from the result, or its share
  std::string group;     // empty: alone
  int32_t group_size = 0;
  Shape shape;

  bool operator==(const Signature&) const = default;
  /// "f32[6,1,5,5]"
  std::string describe() const;
};

/// "I have this tensor": what a rank tells the coordinator.
struct Request {
  std::string name;
  Signature signature;
  std::vector<int64_t> rows;  // if parts are exchanged: to each rank; if they are dealt: of each
  int64_t output_rows = -1;   // rows of the caller's output; -1: the library makes it, or none is
  bool after_wait = false;    // its thread waited for another one's end before it asked for this
  bool join = false;          // "I am out of data": nothing else counts
};

/// "All ranks have it: run it", or why not. The same on every rank, in the same order.
struct Response {
  std::string name;
  Signature signature;
  // If parts are joined: rows of each rank. If they are dealt: rows to each. If they are exchanged:
  // [from * size + to] at the coordinator, elsewhere see for_rank(). A pair's: the ranks from and
  // to which (the signature's root is kFromAnyRank if the receive was from any).
  std::vector<int64_t> rows;
  std::vector<int64_t> joined;  // ranks that take part with nothing
  int64_t id = -1;              // the name's number from now on; -1: not remembered
  std::optional<Error> error;   // the same on every rank
  bool all_joined = false;      // the answer to join; rows = {last rank to join}
  bool after_wait = false;      // all ranks' requests were; for rank 0's plans, not told
  int64_t pair = -1;            // send and recv: its two ranks need not ask for it any more, and
                                // are pair number so and so from the next use of the name on
};

/// What rank `rank` gets of `rows` rows that are dealt equally, the remainder to the lowest ranks.
inline int64_t even_share(int64_t rows, int rank, int size) {
  return rows / size + (rank < rows % size ? 1 : 0);
}

/// What `rank` is told of a response. If parts are exchanged, its rows are those that the rank gets
/// from each rank, and the most that any rank gives any other.
Response for_rank(const Response& response, int rank, int size);

void encode(WireWriter& writer, const Signature& signature);
Signature decode_signature(WireReader& reader);
void encode(WireWriter& writer, const Error& error);
Error decode_error(WireReader& reader);

}  // namespace tutti
